// Builds the page into the static folder of the server: node web/build.mjs TARGET
//
// All files except index.html have a content hash in their names, so that browsers can cache them forever. The output is
// written to a temporary folder and renamed at the end: a running server reads either the old page or the new page.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "..", "src", "dragoman", "web", "static"));
const fresh = `${target}.new`;

await rm(fresh, { recursive: true, force: true });
await mkdir(fresh, { recursive: true });
const licences = await writeLicences();
const mermaid = await copyLibrary("@mermaid-js/tiny/dist/mermaid.tiny.js", "mermaid");
await copyFile(join(here, "src", "frame.html"), join(fresh, "frame.html"));
const result = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx", style: "src/styles/main.css", icon: "src/icon.svg" },
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  splitting: true, // pages other than the chat are loaded when they are opened
  assetNames: "[name]-[hash]",
  loader: { ".svg": "copy" },
  outdir: fresh,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome111", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  define: { __LICENSES__: JSON.stringify(`static/${licences}`), __MERMAID__: JSON.stringify(`static/${mermaid}`) },
  legalComments: "none", // complete in the licence file
  metafile: true,
  logLevel: "warning",
});

const template = await readFile(join(here, "src", "index.html"), "utf-8");
const html = template
  .replace("{script}", outputName("app-", ".js"))
  .replace("{preloads}", preloads())
  .replace("{style}", outputName("style-", ".css"))
  .replace("{icon}", outputName("icon-", ".svg"));
const manifest = await writeManifest();
const page = html.replace("{manifest}", manifest);
await writeFile(join(fresh, "index.html"), page);
await writeServiceWorker(page);
await rm(target, { recursive: true, force: true });
await rename(fresh, target);

function outputPath(start, end) {
  const paths = Object.keys(result.metafile.outputs);
  const output = paths.find((path) => basename(path).startsWith(start) && path.endsWith(end));
  if (!output) throw new Error(`no build output matches ${start}*${end}: ${paths}`);
  return output;
}

function outputName(start, end) {
  return basename(outputPath(start, end));
}

// Links to the scripts that the first one imports, so that the browser requests them together.
function preloads() {
  const { imports } = result.metafile.outputs[outputPath("app-", ".js")];
  const paths = imports.filter(({ kind }) => kind === "import-statement").map(({ path }) => basename(path));
  return paths.sort().map((name) => `<link rel="modulepreload" href="static/${name}">`).join("\n    ");
}

// Copies a library that runs in the preview frame, where it is no module.
async function copyLibrary(path, name) {
  const data = await readFile(join(here, "node_modules", path));
  const hashed = `${name}-${hashOf(data)}.js`;
  await writeFile(join(fresh, hashed), data);
  return hashed;
}

// Writes the description of the page for phones that install it.
async function writeManifest() {
  const source = await readFile(join(here, "src", "manifest.json"), "utf-8");
  const text = source.replaceAll("{icon}", outputName("icon-", ".svg"));
  const name = `manifest-${hashOf(text)}.webmanifest`;
  await writeFile(join(fresh, name), text);
  return name;
}

// Writes the service worker with the names of the files that the page loads first.
async function writeServiceWorker(page) {
  const source = await readFile(join(here, "src", "service-worker.js"), "utf-8");
  const files = [...page.matchAll(/(?:src|href)="(static\/[^"]+)"/g)].map(([, name]) => name);
  const text = source.replace("...FILES", files.map((name) => JSON.stringify(name)).join(", ")).replace("{version}", hashOf(page));
  await writeFile(join(fresh, "service-worker.js"), text);
}

function hashOf(text) {
  return createHash("sha256").update(text).digest("hex").slice(0, 8).toUpperCase();
}

// Writes the licences of all dependencies that are parts of the page to one file.
async function writeLicences() {
  const { dependencies } = JSON.parse(await readFile(join(here, "package.json"), "utf-8"));
  const parts = Object.entries(dependencies).filter(([name]) => name !== "esbuild"); // it builds, and is no part
  const texts = await Promise.all(parts.map(licenceOf));
  const text = texts.join(`\n\n${"-".repeat(80)}\n\n`);
  const name = `licences-${hashOf(text)}.txt`;
  await writeFile(join(fresh, name), text);
  return name;
}

async function licenceOf([name, version]) {
  const folder = join(here, "node_modules", name);
  const file = (await readdir(folder)).find((name) => /^licen[cs]e/i.test(name));
  if (!file) throw new Error(`no licence file in ${name}`);
  return `${name} ${version}\n\n${await readFile(join(folder, file), "utf-8")}`;
}
