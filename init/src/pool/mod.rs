//! What one sandbox after the other can have, so that it need not be made for each.

pub mod layers;
pub mod networks;
pub mod processors;

use std::os::unix::io::OwnedFd;

use layers::Layers;
use networks::Networks;
use processors::Processors;

/// All that a sandbox is born into.
#[derive(Default)]
pub struct Pools {
    pub networks: Networks,
    pub processors: Processors,
    pub layers: Layers,
}

/// Where a clone happens now.
pub struct Entered {
    /// Whether a network namespace was entered, so that the clone need not make one.
    pub network: bool,
    /// A control group of version 2 that the child is born in.
    pub group: Option<OwnedFd>,
}

impl Pools {
    /// Goes where the next sandbox is born; without `shares` it has control groups of its own to be born in.
    pub fn enter(&mut self, shares: bool) -> Entered {
        let group = if shares { self.processors.enter() } else { None };
        Entered { network: self.networks.enter(), group }
    }

    /// Goes back; the child's number, 0 where there is none.
    pub fn leave(&mut self, pid: i32) {
        self.networks.leave(pid);
        self.processors.leave(pid);
    }

    /// A sandbox has ended.
    pub fn ended(&mut self, pid: i32) {
        self.networks.ended(pid);
        self.processors.ended(pid);
        self.layers.ended(pid);
    }

    /// Lets go of what nobody has asked for in a while; in how many milliseconds that is to be done again.
    pub fn expire(&mut self) -> Option<i32> {
        [self.networks.expire(), self.processors.expire(), self.layers.expire()].into_iter().flatten().min()
    }
}

/// Milliseconds until a time of `sys::now`, rounded up.
fn milliseconds_until(time: u64) -> i32 {
    let left = time.saturating_sub(crate::sys::now());
    ((left + 999_999) / 1_000_000).min(i32::MAX as u64) as i32
}
