// Builds the page into the folder that the server reads: node web/build.mjs TARGET
//
// Every file but the page itself has the hash of its content in its name, so that browsers may keep it for ever. The
// folder is written beside its place and moved there at the end: a server that runs meanwhile sees the old page or the
// new one.
import { build } from "esbuild";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "..", "src", "dragoman", "web", "static"));
const fresh = `${target}.new`;

await rm(fresh, { recursive: true, force: true });
await mkdir(fresh, { recursive: true });
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
  legalComments: "linked",
  metafile: true,
  logLevel: "warning",
});

const named = (start, end) => {
  const names = Object.keys(made.metafile.outputs).map((path) => basename(path));
  const found = names.find((name) => name.startsWith(start) && name.endsWith(end));
  if (!found) throw new Error(`nothing was built that is called ${start}…${end}: ${names}`);
  return found;
};
const page = await readFile(join(here, "src", "index.html"), "utf-8");
const filled = page
  .replace("{script}", named("app-", ".js"))
  .replace("{style}", named("style-", ".css"))
  .replace("{icon}", named("icon-", ".svg"));
await writeFile(join(fresh, "index.html"), filled);
await rm(target, { recursive: true, force: true });
await rename(fresh, target);
