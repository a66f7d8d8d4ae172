/* The order of what a search finds. Sphinx takes this file in place of its own scores: conf.py names it. */

/* Pages that people look for with words that stand on many pages. A word counts if the search is that word or has it. */
const WANTED = {
  index: ["install", "installation", "installing", "pip", "quickstart", "start"],
  vllm: ["vllm", "serve", "server", "serving", "openai"],
  "tasks/fit-a-card": ["8 gb", "12 gb", "24 gb", "vram", "out of memory", "oom", "vram_budget"],
  "tasks/offload": ["offload", "offloading", "disk", "residency"],
  "tasks/best-quality": ["quality", "bits per weight", "bits", "bpw"],
  "tasks/keep-it-exact": ["lossless", "exact", "bit for bit"],
  "tasks/look-into-a-file": ["inspect", "heat map"],
  "fine-tuning": ["lora", "qlora", "peft", "fine-tune", "finetune", "training", "train"],
  calibration: ["calibrate", "calibration", "imatrix"],
  quality: ["perplexity", "kl", "eval", "evaluate"],
  "schemes-and-coders": ["int8", "int4", "scheme", "coder", "rans", "huffman"],
  measurements: ["speed", "tokens/s", "benchmark", "benchmarks"],
  peers: ["nf4", "gptq", "awq", "bitsandbytes", "exl3", "compare"],
  "several-gpus": ["multiple gpus", "multi-gpu", "tensor parallel", "device_map"],
  "gpu-setup": ["cuda", "driver", "nvcomp", "gpu"],
  "command-line": ["chat", "command", "cli", "generate"],
  gguf: ["gguf", "llama.cpp"],
  messages: ["error", "error code"],
};

/* Pages for people who change wcodec, notes of past days, and single names of the reference come after the guides. */
const LATER = ["lab/", "architecture/", "contributing/"];

const query = () => (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().trim();

const has = (words, wanted) => ` ${words} `.includes(` ${wanted} `);

var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    if (!anchor && (WANTED[page] || []).some((wanted) => has(query(), wanted))) return score + 200;
    if (kind === "object") return score - 25;
    return LATER.some((folder) => page.startsWith(folder)) ? score - 25 : score;
  },

  // As Sphinx has them.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
