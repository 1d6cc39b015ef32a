// Builds the page into the folder that the server reads: node web/build.mjs TARGET
//
// Every file but the page itself has the hash of its content in its name, so that browsers may keep it for ever. The
// folder is written beside its place and moved there at the end: a server that runs meanwhile sees the old page or the
// new one.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "..", "src", "dragoman", "web", "static"));
const fresh = `${target}.new`;

await rm(fresh, { recursive: true, force: true });
await mkdir(fresh, { recursive: true });
const licences = await writtenLicences();
const made = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx", style: "src/styles/main.css", icon: "src/icon.svg" },
  entryNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  loader: { ".svg": "copy" },
  outdir: fresh,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome111", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  define: { __LICENSES__: JSON.stringify(`static/${licences}`) },
  legalComments: "none", // they are in the file of licences, whole
  metafile: true,
  logLevel: "warning",
});

const page = await readFile(join(here, "src", "index.html"), "utf-8");
const filled = page
  .replace("{script}", named("app-", ".js"))
  .replace("{style}", named("style-", ".css"))
  .replace("{icon}", named("icon-", ".svg"));
await writeFile(join(fresh, "index.html"), filled);
await rm(target, { recursive: true, force: true });
await rename(fresh, target);

function named(start, end) {
  const names = Object.keys(made.metafile.outputs).map((path) => basename(path));
  const found = names.find((name) => name.startsWith(start) && name.endsWith(end));
  if (!found) throw new Error(`nothing was built that is called ${start}…${end}: ${names}`);
  return found;
}

// The licences of everything that is in the page, in one file.
async function writtenLicences() {
  const { dependencies } = JSON.parse(await readFile(join(here, "package.json"), "utf-8"));
  const texts = await Promise.all(Object.entries(dependencies).map(licenceOf));
  const text = texts.join(`\n\n${"-".repeat(80)}\n\n`);
  const name = `licences-${createHash("sha256").update(text).digest("hex").slice(0, 8).toUpperCase()}.txt`;
  await writeFile(join(fresh, name), text);
  return name;
}

async function licenceOf([name, version]) {
  const folder = join(here, "node_modules", name);
  const file = (await readdir(folder)).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name} says nothing of its licence`);
  return `${name} ${version}\n\n${await readFile(join(folder, file), "utf-8")}`;
}
