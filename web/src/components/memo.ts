// A component that renders only when its props differ.
import { Component, h, type ComponentChild, type FunctionComponent } from "preact";

export function memo<Props extends object>(Inner: FunctionComponent<Props>, isSame: (before: Props, after: Props) => boolean): FunctionComponent<Props> {
  class Memo extends Component<Props> {
    override shouldComponentUpdate(next: Props): boolean {
      return !isSame(this.props as Props, next);
    }

    render(): ComponentChild {
      return h(Inner as FunctionComponent<object>, this.props);
    }
  }
  return Memo as unknown as FunctionComponent<Props>;
}
