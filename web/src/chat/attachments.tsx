// Images and files of a message. A signed URL is requested when one is shown.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Icon } from "../components/icons.tsx";
import * as appState from "../state/app-state.ts";
import type { Attachment } from "../state/view-model.ts";

export function Attachments({ attachments }: { attachments: Attachment[] }) {
  if (!attachments.length) return null;
  return (
    <ul class="attachments">
      {attachments.map((attachment, at) => (
        <li key={at}>
          <AttachmentItem attachment={attachment} number={at + 1} />
        </li>
      ))}
    </ul>
  );
}

function AttachmentItem({ attachment, number }: { attachment: Attachment; number: number }) {
  const [url, setUrl] = useState(attachment.url);
  const [isMissing, setMissing] = useState(false);
  const { place, mime } = attachment;
  useEffect(() => {
    if (url || !place) return;
    let isStale = false;
    api.signedUrl(place.bucket, place.path).then(
      (signed) => isStale || setUrl(api.localUrl(signed)),
      () => isStale || setMissing(true),
    );
    return () => {
      isStale = true;
    };
  }, [place?.path]);
  const name = attachment.name || mime;
  if (isMissing || (!place && !url)) return <span class="file muted">{name} {isMissing ? "(deleted)" : ""}</span>;
  if (!url) return <span class="placeholder" aria-label="Loading image" />;
  if (api.isDisplayable(mime)) {
    const title = `Image ${number}${attachment.name ? `: ${attachment.name}` : ""}`;
    const enlarge = (event: MouseEvent) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // opens another tab
      event.preventDefault();
      appState.dialog.set({ kind: "image", url, name: title });
    };
    return (
      <a href={url} target="_blank" rel="noopener noreferrer" onClick={enlarge}>
        <img src={url} alt={title} onError={() => setMissing(true)} />
      </a>
    );
  }
  return (
    <a class="file" href={url} target="_blank" rel="noopener noreferrer">
      <Icon name="file" size={16} /> {name}
    </a>
  );
}
