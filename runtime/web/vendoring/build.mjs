// Makes the files under ../page/vendor/ from the packages that package-lock.json names, and the table of them.
//
// Rules:
// - `npm ci && npm run build` gives the same bytes everywhere: versions and their digests are locked, and nothing here
//   reads the time or the machine.
// - One file per purpose, with relative imports only: the page's policy allows no inline import map.
// - A package's licence text goes with it, in full.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const VENDOR = "../page/vendor/";

const BUNDLES = {
  "ui.js": `
    export { h, render, Fragment, createContext, createRef } from "preact";
    export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext, useId } from "preact/hooks";
    export { signal, computed, effect, batch, untracked, useSignal, useComputed, useSignalEffect } from "@preact/signals";
    import { h } from "preact";
    import htm from "htm";
    export const html = htm.bind(h);
  `,
  "graph.js": `
    import dagre from "@dagrejs/dagre";
    export const { graphlib, layout } = dagre;
  `,
  "axis.js": `
    export { scaleLinear, scaleTime, scaleUtc } from "d3-scale";
    export { timeSecond, timeMinute, timeHour, timeDay, utcSecond, utcMinute, utcHour, utcDay } from "d3-time";
  `,
};

const WITHIN = { "@dagrejs/dagre": ["@dagrejs/graphlib"] }; // what a published file holds already

function packageOf(input) {
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  return found && found[1];
}

function licenceOf(name) {
  const folder = here(`node_modules/${name}/`);
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  return readFileSync(folder + file, "utf8").trim();
}

const rows = [];
const licences = new Map();
for (const [file, contents] of Object.entries(BUNDLES)) {
  const result = await build({
    stdin: { contents, resolveDir: here("."), sourcefile: file },
    outfile: here(VENDOR + file), absWorkingDir: here("."), metafile: true,
    bundle: true, minify: true, format: "esm", target: "es2022", charset: "utf8", legalComments: "none",
    banner: { js: `/* Vendored: README.md beside this file says what is in it, LICENCES.txt under which terms. */` },
  });
  const read = Object.keys(result.metafile.inputs).map(packageOf).filter(Boolean);
  const inside = [...new Set(read.flatMap((name) => [name, ...(WITHIN[name] ?? [])]))].sort();
  const named = inside.map((name) => {
    const { version, license } = JSON.parse(readFileSync(here(`node_modules/${name}/package.json`), "utf8"));
    licences.set(name, `${name} ${version} (${license})\n\n${licenceOf(name)}`);
    return `${name} ${version} (${license})`;
  });
  const digest = createHash("sha256").update(readFileSync(here(VENDOR + file))).digest("hex");
  rows.push(`| \`${file}\` | ${named.join(", ")} | \`${digest}\` |`);
}

const rule = `\n\n${"-".repeat(80)}\n\n`;
writeFileSync(here(`${VENDOR}LICENCES.txt`), [...licences.keys()].sort().map((name) => licences.get(name)).join(rule) + "\n");
writeFileSync(here(`${VENDOR}README.md`), `# What the page uses of others

Made by \`npm ci && npm run build\` in [\`../../vendoring/\`](../../vendoring/README.md); never edited by hand.
The licences' texts are in [LICENCES.txt](LICENCES.txt).

| file | made of | sha256 |
| --- | --- | --- |
${rows.join("\n")}
`);
