// Ids as the store makes them: the time, then chance, in Crockford's base 32, so that they sort by when they were made.
const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

export function ulid(now = Date.now(), chance = crypto.getRandomValues(new Uint8Array(16))): string {
  let time = "";
  for (let rest = now, place = 0; place < 10; place++, rest = Math.floor(rest / 32)) time = DIGITS[rest % 32] + time;
  return time + Array.from(chance, (byte) => DIGITS[byte % 32]).join("");
}
