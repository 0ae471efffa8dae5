//! System V shared memory, semaphores and messages.
//!
//! No process shows them, and they outlive whoever made them. Newer kernels let the plan bound them (`kernel_counts`). Here they are
//! counted, and taken away where the limit of memory is reached.

use crate::limits::memory::parsed;
use crate::process_tree::Processes;
use crate::sys::{self, SystemV, O_RDONLY};

const SEMAPHORE_BYTES: u64 = 64;
const PIECE_BYTES: usize = 16 << 10;
/// A namespace has 32,768 of each at most, of some 200 bytes a line.
const MOST_BYTES: usize = 8 << 20;
const KINDS: [(SystemV, &str); 3] =
    [(SystemV::Shared, "shm"), (SystemV::Semaphores, "sem"), (SystemV::Messages, "msg")];

/// The lines of a table in fields, without its head.
fn rows(processes: &Processes, name: &str) -> Vec<Vec<u64>> {
    let mut text = Vec::new();
    if let Ok(fd) = sys::open_at(processes.directory(), format!("sysvipc/{name}").as_bytes(), O_RDONLY, 0) {
        let mut piece = [0; PIECE_BYTES];
        while let Ok(count @ 1..) = sys::read_some(&fd, &mut piece) {
            text.extend_from_slice(&piece[..count]);
            if text.len() > MOST_BYTES {
                break;
            }
        }
    }
    let fields = |line: &[u8]| -> Vec<u64> {
        line.split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(|word| parsed(word).unwrap_or(0))
            .collect()
    };
    text.split(|byte| *byte == b'\n').skip(1).filter(|line| !line.is_empty()).map(fields).collect()
}

/// Whether there is any.
pub fn is_there(processes: &Processes) -> bool {
    KINDS.iter().any(|(_, name)| !rows(processes, name).is_empty())
}

/// What they hold in memory.
pub fn used_bytes(processes: &Processes) -> u64 {
    let mut total: u64 = 0;
    for (kind, name) in KINDS {
        for fields in rows(processes, name) {
            let bytes: u64 = match (kind, &fields[..]) {
                (SystemV::Shared, [.., resident, swapped]) => resident.saturating_add(*swapped),
                (SystemV::Semaphores, [_, _, _, count, ..]) => count.saturating_mul(SEMAPHORE_BYTES),
                (SystemV::Messages, [_, _, _, bytes, ..]) => *bytes,
                _ => 0,
            };
            total = bytes.saturating_add(total);
        }
    }
    total
}

/// Takes away all that no process is attached to.
pub fn remove(processes: &Processes) {
    for (kind, name) in KINDS {
        for fields in rows(processes, name) {
            let is_attached = kind == SystemV::Shared && fields.get(6).map_or(true, |count| *count > 0);
            if let Some(id) = fields.get(1).filter(|_| !is_attached) {
                sys::remove_system_v(kind, *id as i32);
            }
        }
    }
}
