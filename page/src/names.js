// Cache of the names of objects in the shown version. The sidebar and all views share it, so each list is read once.

export class Names {
  constructor(source) {
    this.source = source;
    this.state = "";
    this.pages = new Map();
  }

  /** Select a version; returns whether it differs from the previous one. */
  select(at, latest) {
    const state = at === "latest" ? `latest ${latest}` : at;
    if (state === this.state) return false;
    this.state = state;
    this.at = at;
    this.pages = new Map();
    return true;
  }

  namespaces(parent, next) {
    return this.#page(["namespace", parent, next], () => this.source.namespaces(this.at, parent, next));
  }

  /** Tables or views directly in a namespace. */
  objects(kind, namespace, next) {
    return this.#page([kind, namespace, next], () => this.source.objects(this.at, kind, namespace, next));
  }

  #page(question, read) {
    const { pages } = this, key = JSON.stringify(question);
    if (!pages.has(key)) {
      pages.set(key, read().catch((error) => {
        pages.delete(key);
        throw error;
      }));
    }
    return pages.get(key);
  }
}
