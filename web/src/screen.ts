import { useEffect, useState } from "preact/hooks";

const PHONE = "(max-width: 760px)";

/** Whether the page is so narrow that tables become cards. */
export function usePhone(): boolean {
  const [phone, setPhone] = useState(() => window.matchMedia(PHONE).matches);
  useEffect(() => {
    const media = window.matchMedia(PHONE);
    const changed = () => setPhone(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  return phone;
}
