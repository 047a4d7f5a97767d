// The graph of a run: its tasks, or groups of tasks, and their dependencies.
//
// Rules:
// - A state is shown by colour, by the icon's shape and in words; a dependency by its line: solid if the task must
//   complete (`depends_on`), dashed if it must only end (`after`). An optional task has a dashed border.
// - The drawing stays small (folding.js), and a worker lays it out (arrange.js); moving and zooming change one
//   attribute. When groups open or close, the selected item stays at its place on the screen.
// - The Tab key stops once: the arrow keys move between items, Enter opens, Backspace folds. The same data are in a
//   table under "Tasks".

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { arrange } from "./arrange.js";
import { childrenOf, edgesOf, labelOf, opening, ownersOf, pathTo, roots, shownItems } from "./folding.js";
import { pathOf } from "./layout.js";
import { phaseCounts } from "./live-graph.js";
import { nextTo, useView } from "./panning.js";
import { Icon, iconOf, ICONS, tone } from "../components.js";
import { ask, href } from "../router.js";
import { counted, groups, listed, number, safe, spoken } from "../text.js";

const TALL = 46;
const WIDE = [116, 232];
const GROUP = 196;
const FAMILY = getComputedStyle(document.documentElement).getPropertyValue("--sans");
const FONTS = { label: `600 13px ${FAMILY}`, said: `11.5px ${FAMILY}` }; // as run.css has them

const pen = document.createElement("canvas").getContext("2d");

function widthOf(text, font = "label") {
  pen.font = FONTS[font];
  return pen.measureText(text).width;
}

/** The text, shortened in its middle so that it fits. */
function fitted(text, room) {
  if (widthOf(text) <= room) return text;
  let keep = Math.max(4, Math.floor((text.length * room) / widthOf(text)) - 1);
  for (; keep > 4; keep -= 1) {
    const cut = `${text.slice(0, Math.ceil(keep * 0.6))}…${text.slice(text.length - Math.floor(keep * 0.4))}`;
    if (widthOf(cut) <= room) return cut;
  }
  return `${text.slice(0, 4)}…`;
}

/** The items to draw with their edges and sizes; made again when groups open or the run changes. */
function drawn(model, top, open) {
  const items = shownItems(model, top, open);
  const edges = edgesOf(model, items, ownersOf(model, items));
  const sizes = items.map((item) => {
    const text = safe(labelOf(model, item));
    const group = item.task === null;
    const least = group ? GROUP : WIDE[0] + (model.optional[item.task] ? widthOf(" · optional", "said") : 0);
    item.size = [Math.round(Math.min(WIDE[1], Math.max(least, widthOf(text) + 50))), group ? TALL + 8 : TALL];
    item.text = fitted(text, item.size[0] - (group ? 24 : 48));
    return item.size;
  });
  return { items, edges, sizes };
}

export function Graph({ id, model, chosen }) {
  const [open, setOpen] = useState([]);
  const [placed, setPlaced] = useState(null);
  const [here, setHere] = useState(null); // the id of the item that has the focus, or gets it next
  const [lit, setLit] = useState(null);
  const anchor = useRef(null); // {id, x, y}: the item that must not move on the screen
  const top = useMemo(() => roots(model), [model.run, model.names]);
  const scene = useMemo(() => drawn(model, top, open), [top, open]);
  const resized = useRef(null);
  const view = useView(() => resized.current?.());
  const direction = view.narrow ? "TB" : "LR";
  model.changed.value; // drawn again when states change

  useEffect(() => {
    let stale = false;
    arrange({ sizes: scene.sizes, edges: scene.edges, direction, aspect: view.narrow ? 0.6 : 1.6 }).then((answer) => {
      if (!stale) setPlaced({ ...answer, scene, direction });
    });
    return () => {
      stale = true;
    };
  }, [scene, direction]);

  useLayoutEffect(() => {
    if (!placed) return;
    const kept = anchor.current && placed.scene.items.findIndex((item) => item.id === anchor.current.id || item.path.some((one) => one.id === anchor.current.id));
    if (anchor.current && kept >= 0) view.put(placed.nodes[kept], anchor.current);
    else view.begin(placed, interesting(model, placed));
    anchor.current = null;
  }, [placed]);

  const reveal = (task) => {
    const path = pathTo(model, top, task);
    const next = path.reduce((ids, item) => opening(model, top, ids, item), open);
    setHere(`t${task}`);
    view.later(`t${task}`);
    if (path.some((item) => !open.includes(item.id))) setOpen(next);
    else if (placed) view.reach(placed.nodes[placed.scene.items.findIndex((item) => item.task === task)]);
  };
  useEffect(() => {
    if (chosen !== null && chosen !== undefined) reveal(chosen);
  }, [chosen, top]);
  useLayoutEffect(() => {
    const wanted = placed && view.wanted();
    const at = wanted ? placed.scene.items.findIndex((item) => item.id === wanted) : -1;
    if (at >= 0) view.reach(placed.nodes[at]);
  }, [placed]);

  const unfold = (item, box) => {
    anchor.current = { id: item.id, ...view.seen(box) };
    setHere(childrenOf(model, item)[0].id);
    setOpen(opening(model, top, open, item));
  };
  const fold = (group) => {
    anchor.current = { id: group.id, ...view.middle() };
    setHere(group.id);
    setOpen(open.filter((one) => one !== group.id));
  };

  const current = placed ? Math.max(0, placed.scene.items.findIndex((item) => item.id === here)) : 0;
  const onKeyDown = (event) => {
    if (!placed || event.ctrlKey || event.metaKey || event.altKey || !event.target.closest("svg")) return;
    const item = placed.scene.items[current];
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      const next = nextTo(placed.nodes, current, step);
      setHere(placed.scene.items[next].id);
      view.focus(placed.scene.items[next].id);
      view.reach(placed.nodes[next]);
    } else if (event.key === "Backspace" && item.path.length) {
      view.refocus();
      fold(item.path.at(-1));
    } else if ((event.key === "Enter" || event.key === " ") && item.task === null) {
      view.refocus();
      unfold(item, placed.nodes[current]);
    } else if (event.key === "+" || event.key === "=") view.zoom(1.25);
    else if (event.key === "-") view.zoom(0.8);
    else if (event.key === "0") view.fit(placed);
    else return;
    event.preventDefault();
  };
  resized.current = () => placed && !view.touched && view.begin(placed, interesting(model, placed));
  useLayoutEffect(() => view.restore(placed?.scene.items[current]?.id), [placed]);

  return html`<section class="graph" aria-label="Graph">
    <div class="toolbar">
      <${Find} model=${model} onFound=${reveal} />
      <span class="spring"></span>
      <div class="zooms" role="group" aria-label="Zoom">
        <button type="button" aria-label="Smaller" onClick=${() => view.zoom(0.8)}>−</button>
        <button type="button" aria-label="Larger" onClick=${() => view.zoom(1.25)}>+</button>
        <button type="button" onClick=${() => placed && view.fit(placed)}>Fit</button>
      </div>
    </div>
    <div class="canvas" ref=${view.box} onKeyDown=${onKeyDown}>
      <${Opened} model=${model} scene=${scene} onFold=${fold} onAll=${() => { anchor.current = null; setOpen([]); }} />
      ${placed ? html`<${Drawing} ...${{ id, model, placed, view, current, lit, setLit, setHere, unfold, chosen }} />` : html`<p class="loading" role="status">Laying it out …</p>`}
    </div>
    <${Legend} id=${id} model=${model} />
  </section>`;
}

/** The first visible item if not all fit: one that runs, waits for a person or failed; otherwise the first. */
function interesting(model, placed) {
  const weight = { failed: 4, held: 3, circuit_open: 3, running: 2, validating: 2, retrying: 2, cancelling: 2, queued: 1 };
  let best = 0;
  let most = 0;
  placed.scene.items.forEach((item, at) => {
    const mine = Math.max(...item.tasks.slice(0, 2000).map((task) => weight[model.phases[task]] ?? 0));
    if (mine > most) [best, most] = [at, mine];
  });
  return placed.nodes[best];
}

function Drawing({ id, model, placed, view, current, lit, setLit, setHere, unfold, chosen }) {
  const { scene, nodes, direction } = placed;
  const edges = useMemo(() => scene.edges.map((edge, at) => pathOf(placed.edges[at], direction)), [placed]);
  const near = lit === null ? null : new Set(scene.edges.flatMap((edge) => (edge.from === lit ? [edge.to] : edge.to === lit ? [edge.from] : [])));
  return html`<svg ref=${view.svg} role="group" aria-label=${`Graph of ${counted(model.names.length, "task")}. The arrow keys go from one to the next.`}>
    <defs>
      <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M1 1 7 4 1 7" /></marker>
      <marker id="arrow-lit" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M1 1 7 4 1 7" /></marker>
    </defs>
    <g ref=${view.layer}>
      <g class=${`edges${scene.edges.length > 60 ? " many" : ""}`} aria-hidden="true">
        ${scene.edges.map((edge, at) => {
          const on = edge.from === lit || edge.to === lit;
          return html`<path key=${`${scene.items[edge.from].id} ${scene.items[edge.to].id}`} d=${edges[at]} class=${`edge${edge.hard ? "" : " after"}${on ? " lit" : ""}`}
            marker-end=${on ? "url(#arrow-lit)" : "url(#arrow)"} />`;
        })}
      </g>
      ${scene.items.map((item, at) => html`<${item.task === null ? Group : Node} key=${item.id} ...${{ id, model, item, box: nodes[at], view }}
        focusable=${at === current} faint=${near !== null && at !== lit && !near.has(at)} chosen=${item.task !== null && item.task === chosen}
        waits=${() => waitsFor(model, scene, at)}
        onFocus=${() => { setHere(item.id); setLit(at); }} onLeave=${() => setLit(null)} onEnter=${() => setLit(at)} onOpen=${() => unfold(item, nodes[at])} />`)}
    </g>
  </svg>`;
}

function waitsFor(model, scene, at) {
  const names = scene.edges.filter((edge) => edge.to === at).map((edge) => safe(labelOf(model, scene.items[edge.from])));
  if (!names.length) return "waits for nothing";
  return `waits for ${listed(names.length > 4 ? [...names.slice(0, 3), `${names.length - 3} more`] : names)}`;
}

const drawnAt = ({ x, y }) => `translate(${Math.round(x * 10) / 10},${Math.round(y * 10) / 10})`;

function Glyph({ phase, x, y }) {
  const icon = iconOf(phase);
  return html`<path class=${`glyph${icon === "play" || icon === "bolt" ? " filled" : ""}`} transform=${`translate(${x},${y})`} d=${ICONS[icon]} />`;
}

function Node({ id, model, item, box, focusable, faint, chosen, waits, onFocus, onLeave, onEnter }) {
  const task = item.task;
  const [state, phase, optional] = [model.states[task], model.phases[task], model.optional[task]];
  const name = safe(model.names[task]);
  const progress = model.progress.get(task);
  const share = progress?.of ? Math.min(Math.max(progress.done / progress.of, 0), 1) : null;
  const at = share === null ? "" : `${Math.floor(share * 100)} %`;
  const told = [spoken(state), at].filter(Boolean).join(" · ");
  const said = 38 + widthOf(told, "said") <= box.width - 8 ? told : spoken(state); // the bar is there in any case
  return html`<a class=${`node tone-${tone(phase)} is-${phase}${optional ? " optional" : ""}${faint ? " faint" : ""}${chosen ? " chosen" : ""}`}
      href=${href(["runs", id], { task: model.names[task] })} data-item=${item.id} tabindex=${focusable ? 0 : -1} transform=${drawnAt(box)}
      aria-label=${`${name}, ${spoken(state)}${at && `, ${at} done`}${optional ? ", optional" : ""}, ${waits()}`} aria-current=${chosen ? "true" : null}
      onFocus=${onFocus} onBlur=${onLeave} onMouseEnter=${onEnter} onMouseLeave=${onLeave}
      onClick=${(event) => { event.preventDefault(); ask({ task: model.names[task] }, {}); }}>
    <title>${name}</title>
    <rect class="body" width=${box.width} height=${box.height} rx="8" />
    <${Glyph} phase=${phase} x=${12} y=${15} />
    <text class="label" x="38" y="20">${item.text}</text>
    <text class="said" x="38" y="36">${said}${optional ? " · optional" : ""}</text>
    ${share !== null && html`<rect class="rest" x="12" y=${box.height - 6} width=${box.width - 24} height="3" rx="1.5" /><rect class="part" x="12" y=${box.height - 6} width=${share * (box.width - 24)} height="3" rx="1.5" />`}
  </a>`;
}

function Group({ model, item, box, focusable, faint, waits, onFocus, onLeave, onEnter, onOpen }) {
  const counts = phaseCounts(model, item.tasks);
  const parts = groups(counts);
  const told = [...parts.filter(({ tone: kind }) => kind !== "good"), ...parts.filter(({ tone: kind }) => kind === "good")];
  const words = told.map(({ word, count }) => `${number(count)} ${word}`);
  const worst = ["bad", "wait", "warn", "active"].find((kind) => parts.some((part) => part.tone === kind)) ?? (parts[0]?.count === item.tasks.length ? parts[0].tone : "idle");
  const room = box.width - 24;
  const line = parts.length === 1 && parts[0].count === item.tasks.length ? `all ${number(item.tasks.length)} ${parts[0].word}` : [words.slice(0, 2), words.slice(0, 1)].map((some) => [number(item.tasks.length), ...some].join(" · ")).find((text) => widthOf(text, "said") <= room) ?? number(item.tasks.length);
  let at = 0;
  return html`<g class=${`node group tone-${worst}${faint ? " faint" : ""}`} role="button" data-item=${item.id} tabindex=${focusable ? 0 : -1} transform=${drawnAt(box)}
      aria-label=${`${safe(labelOf(model, item))}, ${counted(item.tasks.length, "task")}: ${listed(words) || "none begun"}; ${waits()}. Open.`} aria-expanded="false"
      onFocus=${onFocus} onBlur=${onLeave} onMouseEnter=${onEnter} onMouseLeave=${onLeave} onClick=${onOpen}>
    <title>${safe(labelOf(model, item))}</title>
    <rect class="behind" x="5" y="-5" width=${box.width - 10} height="20" rx="7" />
    <rect class="body" width=${box.width} height=${box.height} rx="8" />
    <text class="label" x="12" y="19">${item.text}</text>
    <text class="said" x="12" y="34">${words.length ? line : `${number(item.tasks.length)} · none begun`}</text>
    <rect class="rest" x="12" y=${box.height - 11} width=${room} height="4" rx="2" />
    ${parts.map(({ tone: kind, word, count }) => {
      const [x, width] = [12 + at, (room * count) / item.tasks.length];
      at += width;
      return html`<rect key=${word} class=${`part tone-${kind}`} x=${x} y=${box.height - 11} width=${Math.max(1, width)} height="4" />`;
    })}
  </g>`;
}

/** The open groups, each with a button to fold it again. */
function Opened({ model, scene, onFold, onAll }) {
  const groupsOpen = [...new Map(scene.items.flatMap((item) => item.path).map((group) => [group.id, group])).values()];
  if (!groupsOpen.length) return null;
  return html`<div class="opened" role="group" aria-label="Open groups">
    ${groupsOpen.slice(-4).map((group) => html`<button key=${group.id} type="button" class="chip" onClick=${() => onFold(group)}>
      <span class="cut">${safe(labelOf(model, group))}</span><span class="num">${number(group.tasks.length)}</span><${Icon} name="close" /><span class="unseen">fold</span></button>`)}
    <button type="button" class="quiet" onClick=${onAll}>Fold all</button>
  </div>`;
}

/** Finds a task by a part of its name: Enter goes to the next match. */
function Find({ model, onFound }) {
  const [said, say] = useState("");
  const last = useRef({ text: "", at: -1 });
  const submit = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("name").trim().toLowerCase();
    if (!text) return say("");
    const found = [];
    model.names.forEach((name, task) => name.toLowerCase().includes(text) && found.push(task));
    if (!found.length) return say("none");
    const at = last.current.text === text ? (last.current.at + 1) % found.length : 0;
    last.current = { text, at };
    say(`${number(at + 1)} of ${number(found.length)}`);
    return onFound(found[at]);
  };
  return html`<form class="find" role="search" onSubmit=${submit}>
    <label><span class="unseen">Find a task in the graph</span><input name="name" type="search" placeholder="Find a task" autocomplete="off" spellcheck=${false} /></label>
    <span class="num" role="status">${said}</span>
  </form>`;
}

function Legend({ id, model }) {
  const counts = phaseCounts(model);
  const present = Object.keys(counts).sort((a, b) => counts[b] - counts[a]);
  const soft = model.after.some((others) => others.length);
  const optional = model.optional.some(Boolean);
  return html`<ul class="legend" aria-label="What is in the graph">
    ${present.map((phase) => html`<li key=${phase}>
      <a href=${href(["runs", id], { show: "tasks", phase })}><span class=${`state tone-${tone(phase)}`}><${Icon} name=${iconOf(phase)} /><span>${spoken(phase)}</span></span>
        <span class="num">${number(counts[phase])}</span></a></li>`)}
    ${soft && html`<li class="line"><svg viewBox="0 0 28 8" aria-hidden="true"><path class="edge after" d="M0 4H28" /></svg>after (must only end)</li>`}
    ${optional && html`<li class="line"><svg viewBox="0 0 28 14" aria-hidden="true"><rect class="optionalmark" x="1" y="1" width="26" height="12" rx="4" /></svg>optional</li>`}
  </ul>`;
}
