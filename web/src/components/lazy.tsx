// A component whose script is loaded when it is first shown.
import type { FunctionComponent } from "preact";
import { useEffect, useState } from "preact/hooks";

export function lazy<Props extends object>(load: () => Promise<FunctionComponent<Props>>): FunctionComponent<Props> {
  let Loaded: FunctionComponent<Props> | null = null;
  return function Lazy(props: Props) {
    const [state, setState] = useState<"loading" | "loaded" | "failed">(Loaded ? "loaded" : "loading");
    useEffect(() => {
      if (Loaded) return;
      load().then(
        (component) => ((Loaded = component), setState("loaded")),
        () => setState("failed"),
      );
    }, []);
    if (Loaded) return <Loaded {...props} />;
    return <p class="hint" role="status">{state === "failed" ? "This part could not be loaded. Reload the page." : "Loading …"}</p>;
  };
}
