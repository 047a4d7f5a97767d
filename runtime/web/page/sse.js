// A parser for Server-Sent Events, as the HTML standard defines them. Pure: text in, messages out.
//
// EventSource would do this, but sends no Authorization header; so the store reads the stream with fetch. `retry:` is
// ignored: the store has its own growing pauses.

/** A parser: `feed(text)` returns the complete messages, as {event, data, id}; `id` is the last id, also without data. */
export function sseParser() {
  let rest = "";
  let first = true;
  let [event, data] = ["", []];
  let [id, next] = [null, null];

  function line(text, messages) {
    if (text === "") {
      id = next;
      if (data.length) messages.push({ event: event || "message", data: data.join("\n"), id });
      [event, data] = ["", []];
      return;
    }
    const colon = text.indexOf(":");
    if (colon === 0) return; // a comment: a heartbeat
    const field = colon < 0 ? text : text.slice(0, colon);
    let value = colon < 0 ? "" : text.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") data.push(value);
    else if (field === "event") event = value;
    else if (field === "id" && !value.includes("\0")) next = value;
  }

  return {
    /** The last id, also of a message without data; null before the first one. */
    get id() {
      return id;
    },
    feed(text) {
      rest += first && text.startsWith("\ufeff") ? text.slice(1) : text;
      first &&= text === "";
      const messages = [];
      let start = 0;
      for (let at = 0; at < rest.length; at++) {
        const character = rest[at];
        if (character !== "\n" && character !== "\r") continue;
        if (character === "\r" && at + 1 === rest.length) break; // its \n may be in the next piece
        line(rest.slice(start, at), messages);
        if (character === "\r" && rest[at + 1] === "\n") at++;
        start = at + 1;
      }
      rest = rest.slice(start);
      return messages;
    },
  };
}
