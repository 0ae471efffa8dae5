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

const fn of_user(name: &'static [u8], run: Run) -> Operation {
    Operation { name, is_use: true, run }
}

const fn of_server(name: &'static [u8], run: Run) -> Operation {
    Operation { name, is_use: false, run }
}

const OPERATIONS: &[Operation] = &[
    of_server(b"configure", Supervisor::configure),
    of_server(b"ping", Supervisor::ping),
    of_user(b"exec", Supervisor::exec),
    of_user(b"stdin", Supervisor::expect_input),
    of_user(b"signal", Supervisor::signal),
    of_user(b"resize", Supervisor::resize),
    of_user(b"cancel", Supervisor::cancel),
    of_user(b"cancel_all", Supervisor::cancel_all),
    of_user(b"stop", Supervisor::stop),
    of_user(b"stat", Supervisor::stat),
    of_user(b"list", Supervisor::list),
    of_user(b"mkdir", Supervisor::make_directory),
    of_user(b"remove", Supervisor::remove),
    of_user(b"read", Supervisor::begin_read),
    of_user(b"write", Supervisor::begin_write),
    of_user(b"read_tree", Supervisor::begin_read_tree),
    of_user(b"write_tree", Supervisor::begin_write_tree),
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
