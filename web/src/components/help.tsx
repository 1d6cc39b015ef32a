// The help dialog.
import { Modal } from "./modal.tsx";
import { FIELD_KEYS, SHORTCUTS } from "../lib/shortcuts.ts";

declare const __LICENSES__: string; // URL, set by the build

const COMMAND = /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘" : "Ctrl";

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Modal title="Keyboard shortcuts" onClose={onClose}>
      <dl class="keys">
        {[...FIELD_KEYS, ...SHORTCUTS].map(({ keys, label }) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>
              {keys.map((key) => (
                <kbd key={key}>{key === "Ctrl" ? COMMAND : key}</kbd>
              ))}
            </dd>
          </div>
        ))}
      </dl>
      <p class="muted small">
        To send one message to another model, start it with <code>@model</code>, for example <code>@sonnet</code>.
      </p>
      <p class="muted small">
        Third-party software: <a href={__LICENSES__} target="_blank" rel="noopener">licences</a>
      </p>
    </Modal>
  );
}
