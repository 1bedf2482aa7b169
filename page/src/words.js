// Human-readable sizes, numbers, ages and names.

import { h, plain } from "./dom.js";

const NUMBER = new Intl.NumberFormat("en");
const TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function number(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

export function counted(value, word) {
  return `${number(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let value = bytes, unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  if (unit === 0) return bytes === 1 ? "1 byte" : `${number(bytes)} bytes`;
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

export function age(millis) {
  const seconds = (Date.now() - millis) / 1000;
  const away = Math.abs(seconds);
  const steps = [[60, 1, "second"], [3600, 60, "minute"], [86400, 3600, "hour"], [2592000, 86400, "day"],
    [31536000, 2592000, "month"], [Infinity, 31536000, "year"]];
  if (away < 5) return "just now";
  const [, unit, word] = steps.find(([limit]) => away < limit);
  const count = Math.floor(away / unit);
  const words = `${count} ${word}${count === 1 ? "" : "s"}`;
  return seconds < 0 ? `in ${words}` : `${words} ago`;
}

export function duration(millis) {
  const units = [[86_400_000, "day"], [3_600_000, "hour"], [60_000, "minute"], [1000, "second"]];
  const [unit, word] = units.find(([size]) => millis >= size && millis % size === 0) ?? units.find(([size]) => millis >= size) ?? [1000, "second"];
  const count = millis / unit;
  return counted(Number.isInteger(count) ? count : Number(count.toFixed(1)), word);
}

/** A time: its age, with the exact time as tooltip. */
export function when(millis) {
  if (millis === null || millis === undefined) return "–";
  const date = new Date(millis);
  if (Number.isNaN(date.getTime())) return "–";
  return h("time", { datetime: date.toISOString(), title: TIME.format(date) }, age(millis));
}

export function moment(millis) {
  const date = new Date(millis);
  return Number.isNaN(date.getTime()) ? "–" : TIME.format(date);
}

export function title(...words) {
  document.title = [...words.map(plain), "TrinityLake"].join(" · ");
}
