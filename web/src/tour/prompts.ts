// Prompts on the start page. The embedded model is small: it gets simple ones.
const PROMPTS = ["Explain what a Merkle tree is, with a small example", "Write a haiku about translation, then explain it", "Translate into English: Rien ne sert de courir ; il faut partir à point."];
const SIMPLE_PROMPTS = ["What is a lantern? Answer in one sentence.", "Write a short, polite email to move a meeting to Friday", "List three things to pack for a day at the sea"];

export function promptsFor(provider: string | undefined): string[] {
  return provider === "local" ? SIMPLE_PROMPTS : PROMPTS;
}
