//! Panics of a run, wherever in it, are its result: the runtime catches those of its tasks, so they
//! are noted where they happen.

use std::cell::{Cell, RefCell};
use std::sync::Once;

thread_local! {
    static PLAYING: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on panics of this thread are kept, the first of them, and nothing is printed.
pub(super) fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !PLAYING.get() {
                return before(info);
            }
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let text = format!("{} [{place}]", text.unwrap_or("a panic without words"));
            FIRST.with_borrow_mut(|first| first.get_or_insert(text).len());
        }));
    });
    FIRST.take();
    PLAYING.set(true);
}

/// Whether there was one.
pub(super) fn any() -> bool {
    FIRST.with_borrow(Option::is_some)
}

/// The first one, if there was any; they are printed again.
pub(super) fn end() -> Option<String> {
    PLAYING.set(false);
    FIRST.take()
}
