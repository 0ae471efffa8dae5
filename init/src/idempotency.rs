//! What is asked again after a cut: calls that were done, and files that had come in part.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::errors::Refused;
use crate::event_loop::{Call, EventLoop, Timer};
use crate::files::write::Upload;

/// Calls that are known to have been done, the newest of them.
const REMEMBERED: usize = 4096;
/// How long a file that has come in part waits for the rest.
const PARTS_SECONDS: f64 = 120.0;
/// Files that wait so; the one that waits for longest goes first.
const MOST_PARTS: usize = 64;

/// The last ones, at most so many, in their order.
pub fn newest(in_order: &VecDeque<Vec<u8>>, most: usize) -> impl Iterator<Item = &Vec<u8>> {
    in_order.iter().skip(in_order.len().saturating_sub(most))
}

/// By the key that their caller gave them.
pub struct Again {
    done: HashSet<Vec<u8>>,
    in_order: VecDeque<Vec<u8>>,
    waiting: HashMap<Vec<u8>, (Upload, Timer)>,
    /// Channels on which a part is coming.
    pub coming: HashMap<Vec<u8>, u16>,
}

impl Again {
    pub fn new() -> Again {
        Again { done: HashSet::new(), in_order: VecDeque::new(), waiting: HashMap::new(), coming: HashMap::new() }
    }

    /// Whether a file has come in part.
    pub fn has_parts(&self) -> bool {
        !(self.waiting.is_empty() && self.coming.is_empty())
    }

    /// The keys of calls that were done, at most so many, the newest ones in their order.
    pub fn keys(&self, most: usize) -> Vec<Vec<u8>> {
        newest(&self.in_order, most).cloned().collect()
    }

    pub fn is_done(&self, key: Option<&[u8]>) -> bool {
        key.map_or(false, |key| self.done.contains(key))
    }

    pub fn done(&mut self, key: Option<&[u8]>) {
        if let Some(key) = key {
            if self.done.insert(key.to_vec()) {
                self.in_order.push_back(key.to_vec());
            }
            while self.in_order.len() > REMEMBERED {
                if let Some(oldest) = self.in_order.pop_front() {
                    self.done.remove(&oldest);
                }
            }
        }
    }

    /// The file that has come up to this offset, or further; `None` at the beginning of a new one.
    ///
    /// # Errors
    /// It is not there.
    pub fn take(&mut self, key: &[u8], offset: u64, looper: &mut EventLoop) -> Result<Option<Upload>, Refused> {
        match self.waiting.remove(key) {
            Some((upload, timer)) => {
                looper.cancel(timer);
                Ok(Some(upload))
            }
            None if offset > 0 => Err(Refused::unavailable("upload_lost", "what had come of the file is gone", false)),
            None => Ok(None),
        }
    }

    /// Keeps a file until the rest comes.
    pub fn put(&mut self, key: &[u8], upload: Upload, looper: &mut EventLoop) {
        while self.waiting.len() >= MOST_PARTS {
            // The timers tell their order.
            let oldest = self.waiting.iter().min_by_key(|(_, (_, timer))| *timer).map(|(key, _)| key.clone());
            if let Some((_, timer)) = oldest.and_then(|oldest| self.waiting.remove(&oldest)) {
                looper.cancel(timer);
            }
        }
        let timer = looper.after(PARTS_SECONDS, Call::PartOver(key.to_vec()));
        self.waiting.insert(key.to_vec(), (upload, timer));
    }

    /// Nobody has come for the rest.
    pub fn part_is_over(&mut self, key: &[u8]) {
        self.waiting.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_come_in_their_order() {
        let mut again = Again::new();
        for key in [b"a", b"b", b"c", b"a"] {
            again.done(Some(key));
        }
        assert_eq!(again.keys(2), [b"b".to_vec(), b"c".to_vec()]);
        assert_eq!(again.keys(9), [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    }
}
