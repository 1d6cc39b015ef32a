// An observable value, and hooks to render it.
import { useEffect, useState } from "preact/hooks";

export class Observable<T> {
  #value: T;
  #watchers = new Set<(value: T) => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  change(update: (value: T) => T): void {
    this.set(update(this.#value));
  }

  watch(watcher: (value: T) => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

export function useObservable<T>(observable: Observable<T>): T {
  const [value, setValue] = useState(() => observable.value);
  useEffect(() => {
    setValue(() => observable.value);
    return observable.watch((next) => setValue(() => next));
  }, [observable]);
  return value;
}

// For values that change often: renders at most once per frame. Hidden pages have no frames, so a timer is used too.
export function useObservablePerFrame<T>(observable: Observable<T>): T {
  const [value, setValue] = useState(() => observable.value);
  useEffect(() => {
    let frame = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const cancel = () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      frame = 0;
    };
    const render = () => {
      cancel();
      setValue(() => observable.value);
    };
    const onChange = () => {
      if (frame) return;
      frame = requestAnimationFrame(render);
      timer = setTimeout(render, 100);
    };
    render();
    const unwatch = observable.watch(onChange);
    return () => (unwatch(), cancel());
  }, [observable]);
  return value;
}
