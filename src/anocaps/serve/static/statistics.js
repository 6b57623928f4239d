// Intervals that the page shows, computed here so that the slider is live.

const ERRORS = 1.96; // standard errors to each side of a 95 % interval

// Wilson's interval of a proportion.
export function wilson(hits, all) {
  if (!all) return [0, 1];
  const share = hits / all, z = ERRORS ** 2 / all;
  const middle = (share + z / 2) / (1 + z);
  const half = (ERRORS / (1 + z)) * Math.sqrt(share * (1 - share) / all + z / (4 * all));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// The 90 % interval of the false-alarm rate at alpha = k / (n + 1), over draws of n calibration
// images: that of Beta(k, n + 1 − k), as anocaps.judging.spread computes it.
export function rateRange(k, n) {
  const logs = new Float64Array(n + 2); // of factorials
  for (let j = 2; j <= n + 1; j++) logs[j] = logs[j - 1] + Math.log(j);
  const fewer = (rate) => {
    let sum = 0;
    for (let j = 0; j < k; j++) {
      sum += Math.exp(logs[n] - logs[j] - logs[n - j] + j * Math.log(rate) + (n - j) * Math.log1p(-rate));
    }
    return sum;
  };
  const first = (below) => {
    let low = 0, high = 1;
    for (let step = 0; step < 50; step++) {
      const middle = (low + high) / 2;
      if (fewer(middle) < below) high = middle; else low = middle;
    }
    return high;
  };
  return [first(0.95), first(0.05)];
}

// The values that the slider can take: k of n + 1, up to 30 %, at most 100 of them.
export function steps(n) {
  const most = Math.max(1, Math.floor(0.3 * (n + 1))), found = [];
  const wanted = Math.min(most, 100);
  for (let j = 1; j <= wanted; j++) {
    const k = most <= 100 ? j : Math.max(found.at(-1) + 1 || 1, Math.round(most ** (j / wanted)));
    if (k <= most) found.push(k);
  }
  return found;
}

// The number of calibration images that do not score higher, plus one: p = rank / (n + 1).
export const rank = (p, n) => Math.round(p * (n + 1));

export function among(p, n) {
  const share = (n + 1 - rank(p, n)) / n;
  if (share >= 1) return `more anomalous than all ${n} normal photos kept aside`;
  if (share <= 0) return "as normal as can be";
  return `more anomalous than ${Math.min(99, Math.floor(100 * share))} of 100`;
}
