// An image that is enlarged by a click.
import { Modal } from "../components/modal.tsx";
import * as appState from "../state/app-state.ts";

export function Picture({ url, name }: { url: string; name: string }) {
  return (
    <button type="button" class="picture-button" aria-label={`Enlarge: ${name}`} onClick={() => appState.dialog.set({ kind: "image", url, name })}>
      <img class="picture" src={url} alt={name} />
    </button>
  );
}

export function Lightbox({ url, name, onClose }: { url: string; name: string; onClose: () => void }) {
  return (
    <Modal title={name} onClose={onClose} class="lightbox">
      <img src={url} alt={name} />
    </Modal>
  );
}
