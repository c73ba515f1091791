const version = document.querySelector("meta[name=version]").content, OPEN = `open:${location.pathname}`;
const isInUse = () => document.hidden || document.querySelector("dialog[open]")
  || [...document.querySelectorAll("audio, video")].some(player => !player.paused && !player.muted);
addEventListener("DOMContentLoaded", () => {
  const open = JSON.parse(sessionStorage.getItem(OPEN) ?? "[]");
  document.querySelectorAll("details").forEach((part, index) => { part.open ||= open.includes(index); });
});
setInterval(async () => {
  if (isInUse()) return;
  const response = await fetch(location.pathname, {method: "HEAD", cache: "no-store"}).catch(() => null);
  if (!response?.ok || response.headers.get("ETag") === `"${version}"`) return;
  const parts = [...document.querySelectorAll("details")];
  sessionStorage.setItem(OPEN, JSON.stringify(parts.flatMap((part, index) => part.open ? [index] : [])));
  location.reload();
}, 2000);
