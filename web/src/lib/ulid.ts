// ULIDs, as the store creates them: time and randomness in Crockford base 32, sortable by time.
const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

export function ulid(now = Date.now(), random = crypto.getRandomValues(new Uint8Array(16))): string {
  let time = "";
  for (let rest = now, place = 0; place < 10; place++, rest = Math.floor(rest / 32)) time = DIGITS[rest % 32] + time;
  return time + Array.from(random, (byte) => DIGITS[byte % 32]).join("");
}
