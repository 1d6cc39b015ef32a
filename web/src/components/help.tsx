// The help sheet.
import { Modal } from "./modal.tsx";
import { ELSEWHERE, SHORTCUTS } from "../lib/shortcuts.ts";

declare const __LICENSES__: string; // an address, which the build fills in

const COMMAND = /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘" : "Ctrl";

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Modal title="Keys" onClose={onClose}>
      <dl class="keys">
        {[...ELSEWHERE, ...SHORTCUTS].map(({ keys, says }) => (
          <div key={says}>
            <dt>{says}</dt>
            <dd>
              {keys.map((key) => (
                <kbd key={key}>{key === "Ctrl" ? COMMAND : key}</kbd>
              ))}
            </dd>
          </div>
        ))}
      </dl>
      <p class="muted small">
        Begin a message with <code>@model</code>, for example <code>@sonnet</code>, and that model answers this one message.
      </p>
      <p class="muted small">
        What this page is made of: <a href={__LICENSES__} target="_blank" rel="noopener">licences</a>
      </p>
    </Modal>
  );
}
