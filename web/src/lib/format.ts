// Formatting of numbers, amounts and times.
const whole = new Intl.NumberFormat("en");

export function count(number: number): string {
  return whole.format(number);
}

export function plural(number: number, singular: string, several = `${singular}s`): string {
  return `${count(number)} ${number === 1 ? singular : several}`;
}

// Two decimals, or two significant digits below 10 cents.
export function dollars(amount: number): string {
  if (amount === 0) return "$0.00";
  if (Math.abs(amount) >= 0.1) return `$${amount.toFixed(2)}`;
  if (Math.abs(amount) < 1e-6) return "< $0.000001";
  const digits = Math.min(6, 1 - Math.floor(Math.log10(Math.abs(amount))));
  return `$${amount.toFixed(digits)}`;
}

// Cost of a group of answers. Unpriced answers are counted separately, not as zero.
export function spent(costUsd: string | null, unpriced: number, answers: number): string {
  if (!unpriced) return dollars(Number(costUsd));
  return unpriced >= answers ? "unpriced" : `${dollars(Number(costUsd))} + ${count(unpriced)} unpriced`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function shortTokens(number: number): string {
  if (number >= 1_000_000) return `${shortNumber(number / 1_000_000)}M`;
  return number >= 1000 ? `${shortNumber(number / 1000)}k` : String(number);
}

function shortNumber(number: number): string {
  return number >= 10 ? String(Math.round(number)) : number.toFixed(1).replace(/\.0$/, "");
}

export function bytes(number: number): string {
  if (number < 1000) return `${number} B`;
  return number < 1_000_000 ? `${Math.round(number / 1000)} kB` : `${(number / 1_000_000).toFixed(1)} MB`;
}

const DAY = 86_400_000;

// Heading of a conversation in the list.
export function era(when: Date, now: Date): string {
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const time = when.getTime();
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 6 * DAY ? "This week" : when.toLocaleDateString("en", { month: "long", year: "numeric" });
}

export function moment(when: string): string {
  return new Date(when).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
}

// The name of a model without its provider.
export function modelName(id: string): string {
  return id.slice(id.indexOf(":") + 1);
}

// Plain text of a Markdown text, on one line.
export function stripMarkdown(text: string): string {
  return text.replace(/```\w*|[#>|]+/g, " ").replace(/[*_`]+/g, "").replace(/\s+/g, " ").trim();
}

// Indented JSON; other text is returned unchanged.
export function prettyJson(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
