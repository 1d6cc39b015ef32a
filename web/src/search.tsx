// Results of a search across all conversations.
import { useEffect, useState } from "preact/hooks";
import * as api from "./api/client.ts";
import { plural } from "./lib/format.ts";
import { hashOf } from "./state/route.ts";
import * as appState from "./state/app-state.ts";
import { FilterFields, NO_FILTERS } from "./organise/search-filters.tsx";
import type { Hit, SearchFilters } from "./api/types.ts";

const WHO: Record<string, string> = { user: "You", assistant: "Model", tool: "Tool", system: "System" };
const PAUSE_MS = 150;

interface Results {
  hits: Hit[];
  hasMore: boolean;
}

export function SearchResults({ words }: { words: string }) {
  const [results, setResults] = useState<Results | null>(null);
  const [filters, setFilters] = useState(NO_FILTERS);
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(() => void appState.attempt(async () => setResults(await find(words, filters, 0, abort.signal))), PAUSE_MS);
    return () => (clearTimeout(timer), abort.abort());
  }, [words, filters]);
  const fields = <FilterFields filters={filters} onChange={setFilters} />;
  if (results === null)
    return (
      <>
        {fields}
        <p class="hint">Searching …</p>
      </>
    );
  const { hits, hasMore } = results;
  const showMore = () =>
    void appState.attempt(async () => {
      const next = await find(words, filters, hits.length, new AbortController().signal);
      setResults({ hits: [...hits, ...next.hits], hasMore: next.hasMore });
    });
  return (
    <>
      {fields}
      <p class="hint" role="status">
        {hasMore ? `The best ${plural(hits.length, "message")}; there are more` : hits.length ? plural(hits.length, "message") : "No results. Try fewer or different words."}
      </p>
      <ul>
        {hits.map((hit) => (
          <li class="thread" key={`${hit.threadId}:${hit.seq}`}>
            <a href={hashOf({ id: hit.threadId, at: hit.messageId, seq: hit.seq })}>
              <span class="title">
                <span>{hit.title || appState.thread(hit.threadId)?.title || "Untitled"}</span>
              </span>
              <span class="snippet found">
                <span class="who">{WHO[hit.role] ?? hit.role}</span> <HighlightedSnippet hit={hit} />
              </span>
            </a>
          </li>
        ))}
      </ul>
      {hasMore && (
        <button type="button" class="quiet wide" onClick={showMore}>
          Show more
        </button>
      )}
    </>
  );
}

async function find(words: string, filters: SearchFilters, offset: number, signal: AbortSignal): Promise<Results> {
  try {
    return await api.search(words, filters, offset, signal);
  } catch (error) {
    if (signal.aborted) return { hits: [], hasMore: false };
    throw error;
  }
}

function HighlightedSnippet({ hit: { snippet, highlights } }: { hit: Hit }) {
  let at = 0;
  return (
    <>
      {highlights.map(([from, to]) => {
        const before = snippet.slice(at, from);
        at = to;
        return (
          <>
            {before}
            <mark>{snippet.slice(from, to)}</mark>
          </>
        );
      })}
      {snippet.slice(at)}
    </>
  );
}
