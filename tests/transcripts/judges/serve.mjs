// Calls the functions of a script: one line of JSON per question and one per answer.
// The packages are in the folder of the environment, not beside the script.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [script, folder] = process.argv.slice(2);
const find = createRequire(join(folder, "package.json"));
const found = async (name) => import(pathToFileURL(find.resolve(name)).href);
const judge = await (await import(pathToFileURL(script).href)).judge(found);

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = { answer: (await judge[request.question](request.value)) ?? null };
  } catch (error) {
    answer = { failed: String(error?.stack ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
