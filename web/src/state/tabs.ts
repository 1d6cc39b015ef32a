// Messages between the tabs of one browser: a conversation has changed.
let channel: BroadcastChannel | null = null;

function open(): BroadcastChannel {
  channel ??= new BroadcastChannel("dragoman");
  return channel;
}

export function announceChange(threadId: string): void {
  open().postMessage(threadId);
}

export function onChangeInOtherTab(handle: (threadId: string) => void): void {
  open().addEventListener("message", (event) => handle(String(event.data)));
}
