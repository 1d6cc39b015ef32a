// Pictures and other files of a message. Where one is kept is known; its URL is asked for when it is shown.
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/client.ts";
import { Icon } from "../components/icons.tsx";
import type { Enclosure } from "../state/view-model.ts";

export function Enclosures({ enclosures }: { enclosures: Enclosure[] }) {
  if (!enclosures.length) return null;
  return (
    <ul class="enclosures">
      {enclosures.map((one, at) => (
        <li key={at}>
          <Shown enclosure={one} number={at + 1} />
        </li>
      ))}
    </ul>
  );
}

function Shown({ enclosure, number }: { enclosure: Enclosure; number: number }) {
  const [url, setUrl] = useState(enclosure.url);
  const [isGone, setGone] = useState(false);
  const { place, mime } = enclosure;
  useEffect(() => {
    if (url || !place) return;
    let isLeft = false;
    api.signedUrl(place.bucket, place.path).then(
      (found) => isLeft || setUrl(api.ours(found)),
      () => isLeft || setGone(true),
    );
    return () => {
      isLeft = true;
    };
  }, [place?.path]);
  const name = enclosure.name || mime;
  if (isGone || (!place && !url)) return <span class="file muted">{name} {isGone ? "(no longer kept)" : ""}</span>;
  if (!url) return <span class="placeholder" aria-label="Loading a picture" />;
  if (api.isShown(mime)) {
    return (
      <a href={url} target="_blank" rel="noopener noreferrer">
        <img src={url} alt={`Picture ${number}${enclosure.name ? `: ${enclosure.name}` : ""}`} onError={() => setGone(true)} />
      </a>
    );
  }
  return (
    <a class="file" href={url} target="_blank" rel="noopener noreferrer">
      <Icon name="file" size={16} /> {name}
    </a>
  );
}
