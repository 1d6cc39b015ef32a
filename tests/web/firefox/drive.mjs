// Drives the main paths of the page in Firefox: node drive.mjs FIREFOX URL
import puppeteer from "puppeteer-core";

const [, , executablePath, url] = process.argv;
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true, protocol: "webDriverBiDi" });
const problems = [];
try {
  const page = await browser.newPage();
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.setViewport({ width: 1280, height: 860 });
  await page.goto(`${url}/#/`);
  await ask(page, "What is a lantern?", "A lamp in a case.");
  await click(page, "[aria-label='Why this answer?']");
  await page.waitForSelector(".waterfall");
  await page.goBack();
  await waitForText(page, "A lamp in a case.");
  await click(page, ".model-button");
  await page.type("dialog input[type=search]", "blind");
  await page.keyboard.press("Enter");
  await waitForText(page, "Fits the context window");
  await page.keyboard.press("Escape");
  await click(page, "[aria-label='Show in another format']");
  await page.waitForSelector("dialog code");
  await page.keyboard.press("Escape");
  await page.type("#search", "lantern");
  await page.waitForSelector(".list mark");
  await page.goto(`${url}/#/costs`);
  await page.waitForSelector(".costs .figure");
} finally {
  await browser.close();
}
if (problems.length) throw new Error(problems.join("\n"));
console.log("done");

async function ask(page, question, answer) {
  await page.waitForSelector("#words");
  await page.type("#words", question);
  await page.keyboard.press("Enter");
  await waitForText(page, answer);
  await page.waitForSelector(".answer .receipt");
}

async function click(page, selector) {
  const found = await page.waitForSelector(selector);
  await found.click();
}

function waitForText(page, text) {
  return page.waitForFunction((expected) => document.body.innerText.includes(expected), { polling: 100 }, text);
}
