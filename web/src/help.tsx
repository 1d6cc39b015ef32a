// The help sheet.
import { Modal } from "./modal.tsx";
import { ELSEWHERE, SHORTCUTS } from "./shortcuts.ts";

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Modal title="Keys" onClose={onClose}>
      <dl class="keys">
        {[...ELSEWHERE, ...SHORTCUTS].map(({ keys, says }) => (
          <div key={says}>
            <dt>{says}</dt>
            <dd>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dd>
          </div>
        ))}
      </dl>
      <p class="muted">
        Begin a message with <code>@model</code>, for example <code>@sonnet</code>, and that model answers this one message.
      </p>
    </Modal>
  );
}
