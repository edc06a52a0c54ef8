// Walk through the site in a frame: every link from the first page on, each page at every width. Posts one report:
//   pages     address -> {title}
//   broken    links that lead nowhere: no page, no file, no such id
//   overflow  what is wider than the page, or clipped inside of it
//   pictures  every picture as it is shown: address, width, natural width, whether it is a link to itself

const WIDTHS = [1280, 1600, 412];
const DESKTOP = 1280; // from here on nothing may scroll to the side; below, code and tables scroll inside of the page
const report = { pages: {}, broken: [], overflow: [], pictures: [], external: [] };
const frame = document.createElement("iframe");
frame.style.cssText = "border: 0; height: 1200px";

const turn = () => new Promise((done) => setTimeout(done, 30));

function load(address, width) {
  frame.style.width = width + "px";
  return new Promise((done, fail) => {
    const late = setTimeout(() => fail(new Error("no load event")), 20000);
    frame.onload = () => { clearTimeout(late); done(frame.contentDocument); };
    frame.src = address;
  });
}

function name(element) {
  const words = (element.innerText || element.alt || "").trim().replace(/\s+/g, " ").slice(0, 60);
  return `${element.tagName.toLowerCase()}.${[...element.classList].join(".")} "${words}"`;
}

function measure(address, width) {
  const page = frame.contentDocument, root = page.documentElement;
  const wrong = (what) => report.overflow.push(`${address} at ${width}: ${what}`);
  if (root.scrollWidth > width) wrong(`the page is ${root.scrollWidth} wide`);
  const article = page.querySelector("article");
  if (!article) { wrong("no article"); return; }
  // A word of code that is broken at the edge keeps its padding. On a telephone code runs to the edge of the screen.
  const edge = (width >= DESKTOP ? article.getBoundingClientRect().right : width) + 4;
  for (const element of article.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || element.closest(".headerlink, .md-clipboard, .md-code__nav")) continue;
    const scrolls = frame.contentWindow.getComputedStyle(element).overflowX !== "visible";
    if (scrolls && element.scrollWidth > element.clientWidth + 1 && width >= DESKTOP) {
      wrong(`${name(element)} shows ${element.clientWidth} of ${element.scrollWidth}`);
    }
    const inside = element.closest("pre, .md-typeset__scrollwrap");
    if (box.right > edge && !(inside && width < DESKTOP)) wrong(`${name(element)} ends outside: at ${box.right} of ${edge}`);
  }
}

function look(address) {
  for (const picture of frame.contentDocument.querySelectorAll("article img")) {
    const link = picture.closest("a");
    report.pictures.push({
      page: address, source: new URL(picture.src).pathname, width: picture.clientWidth,
      natural: picture.naturalWidth, opens: Boolean(link) && link.href === picture.src,
      text: picture.alt,
    });
  }
}

async function visit(address, waiting, ids) {
  const page = await load(address, WIDTHS[0]);
  await turn(); // the theme puts tables into boxes of their own
  report.pages[address] = { title: page.title };
  ids[address] = new Set([...page.querySelectorAll("[id], [name]")].flatMap((e) => [e.id, e.getAttribute("name")]));
  look(address);
  for (const width of WIDTHS) {
    frame.style.width = width + "px";
    await turn();
    measure(address, width);
  }
  for (const link of page.querySelectorAll("a[href]")) {
    const to = new URL(link.href);
    if (to.origin !== location.origin) report.external.push(to.href);
    else waiting.push({ from: address, path: to.pathname, fragment: decodeURIComponent(to.hash.slice(1)) });
  }
}

async function walk() {
  document.body.append(frame);
  const waiting = [{ from: "", path: "/", fragment: "" }], ids = {}, fragments = [];
  const found = {};
  while (waiting.length) {
    const { from, path, fragment } = waiting.shift();
    if (fragment) fragments.push({ from, path, fragment });
    if (!(path in found)) {
      const answer = await fetch(path);
      found[path] = answer.ok;
      const kind = answer.headers.get("Content-Type") || "";
      if (answer.ok && kind.startsWith("text/html")) await visit(path, waiting, ids);
    }
    if (!found[path]) report.broken.push(`${from}: ${path}`);
  }
  for (const { from, path, fragment } of fragments) {
    if (ids[path] && !ids[path].has(fragment)) report.broken.push(`${from}: ${path}#${fragment}`);
  }
}

window.onload = async () => {
  try { await walk(); } catch (error) { report.error = String(error.stack || error); }
  await fetch("/report", { method: "POST", body: JSON.stringify(report) });
};
