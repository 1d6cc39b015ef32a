// Reads frames of protobuf from a file, and prints the events that the published decoder makes of them.
//   node decode-proto.mjs FILE
import { readFileSync } from "node:fs";
import { decode } from "@ag-ui/proto";

const data = new Uint8Array(readFileSync(process.argv[2]));
const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
const events = [];
for (let at = 0; at < data.length; ) {
  const length = view.getUint32(at);
  events.push(decode(data.subarray(at + 4, at + 4 + length)));
  at += 4 + length;
}
console.log(JSON.stringify(events));
