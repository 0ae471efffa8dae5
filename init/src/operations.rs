//! The operations that a request can ask for, by name; `docs/protocol.md` says what each does.

use crate::errors::{Fields, Refused};
use crate::supervisor::Supervisor;

/// Answers on its channel, now or later, or refuses.
type Run = fn(&mut Supervisor, u16, &Fields<'_>) -> Result<(), Refused>;

pub struct Operation {
    name: &'static [u8],
    /// It means that the sandbox is in use.
    pub is_use: bool,
    pub run: Run,
}

const OPERATIONS: &[Operation] = &[
    Operation { name: b"configure", is_use: true, run: Supervisor::configure },
    Operation { name: b"ping", is_use: false, run: Supervisor::ping },
    Operation { name: b"exec", is_use: true, run: Supervisor::exec },
    Operation { name: b"stdin", is_use: true, run: Supervisor::expect_input },
    Operation { name: b"signal", is_use: true, run: Supervisor::signal },
    Operation { name: b"resize", is_use: true, run: Supervisor::resize },
    Operation { name: b"cancel", is_use: true, run: Supervisor::cancel },
    Operation { name: b"cancel_all", is_use: true, run: Supervisor::cancel_all },
    Operation { name: b"stop", is_use: true, run: Supervisor::stop },
    Operation { name: b"stat", is_use: true, run: Supervisor::stat },
    Operation { name: b"list", is_use: true, run: Supervisor::list },
    Operation { name: b"mkdir", is_use: true, run: Supervisor::make_directory },
    Operation { name: b"remove", is_use: true, run: Supervisor::remove },
    Operation { name: b"read", is_use: true, run: Supervisor::begin_read },
    Operation { name: b"write", is_use: true, run: Supervisor::begin_write },
    Operation { name: b"read_tree", is_use: true, run: Supervisor::begin_read_tree },
    Operation { name: b"read_layer", is_use: true, run: Supervisor::begin_read_layer },
    Operation { name: b"rest", is_use: false, run: Supervisor::rest },
    Operation { name: b"remember", is_use: true, run: Supervisor::remember },
    Operation { name: b"write_tree", is_use: true, run: Supervisor::begin_write_tree },
    Operation { name: b"dial", is_use: true, run: Supervisor::dial },
    Operation { name: b"listen", is_use: false, run: Supervisor::listen },
    Operation { name: b"accept", is_use: false, run: Supervisor::wait_for_relayed },
];

/// Of a name that there is not, in the refusal.
const LONGEST_NAME: usize = 40;

/// The operation of this name.
pub fn find(name: &[u8]) -> Result<&'static Operation, Refused> {
    OPERATIONS.iter().find(|operation| operation.name == name).ok_or_else(|| {
        let name = String::from_utf8_lossy(&name[..name.len().min(LONGEST_NAME)]).into_owned();
        Refused::invalid(format!("a malformed request: there is no operation {name:?}"))
    })
}
