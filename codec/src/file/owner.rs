//! The owner of a temporary file, which is part of its name, so that every file system and every machine that shares it
//! can read it.
//!
//! A lock alone is not enough: on some network file systems, and on those that only pretend to lock, the locks of one
//! machine mean nothing to the others.

use std::fmt;

/// A process, unique across machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// A hash of the machine, its boot and its PID namespace; 0 if the system does not provide them.
    node: u64,
    process: u32,
    /// Its start time in clock ticks: process ids are reused.
    begin: u64,
}

impl Owner {
    /// The current process.
    pub(super) fn this_process() -> Self {
        let process = std::process::id();
        Self { node: system::node(), process, begin: system::begin(process).unwrap_or(0) }
    }

    /// Parses the output of [`Display`](fmt::Display).
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let node = parts.next().filter(|n| n.len() == 16)?;
        let owner = Self {
            node: u64::from_str_radix(node, 16).ok()?,
            process: parts.next()?.parse().ok()?,
            begin: parts.next()?.parse().ok()?,
        };
        // Only the canonical form is accepted, so that nothing else is mistaken for one.
        (parts.next().is_none() && owner.to_string() == text).then_some(owner)
    }

    /// Whether the process is known to have ended. The state of a process on another machine, or in another container,
    /// is unknown.
    pub(super) fn has_ended(&self) -> bool {
        let node = system::node();
        if self.node != node || (node == 0 && system::COUNTS) {
            return false;
        }
        match system::begin(self.process) {
            Some(begin) => begin != self.begin,
            None => !system::exists(self.process),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}-{}", self.node, self.process, self.begin)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::sync::OnceLock;

    pub(super) const COUNTS: bool = true;

    pub(super) fn node() -> u64 {
        static NODE: OnceLock<u64> = OnceLock::new();
        *NODE.get_or_init(|| read().unwrap_or(0))
    }

    /// Containers of one machine may share a name, and cloned machines a boot id.
    fn read() -> Option<u64> {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let name = rustix::system::uname().nodename().to_bytes().to_vec();
        let all = [&boot[..], space.as_os_str().as_encoded_bytes(), &name].join(&0);
        Some(xxhash_rust::xxh3::xxh3_64(&all).max(1))
    }

    /// The start time of a process; `None` if there is none, or if it is a zombie.
    pub(super) fn begin(process: u32) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // Its name is in parentheses and may contain any characters.
        let mut rest = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
        match rest.next()? {
            "Z" | "X" => None,
            _ => rest.nth(18)?.parse().ok(),
        }
    }

    /// Whether a process exists that reveals nothing about itself: `/proc` may hide processes of other users.
    pub(super) fn exists(process: u32) -> bool {
        let id = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
        id.is_some_and(|id| rustix::process::test_kill_process(id) == Err(rustix::io::Errno::PERM))
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    pub(super) const COUNTS: bool = true;

    pub(super) fn node() -> u64 {
        xxhash_rust::xxh3::xxh3_64(rustix::system::uname().nodename().to_bytes()).max(1)
    }

    pub(super) fn begin(_: u32) -> Option<u64> {
        None
    }

    pub(super) fn exists(process: u32) -> bool {
        let id = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
        id.is_some_and(|id| rustix::process::test_kill_process(id) != Err(rustix::io::Errno::SRCH))
    }
}

/// On these systems locks reach all processes and suffice alone.
#[cfg(not(unix))]
mod system {
    pub(super) const COUNTS: bool = false;

    pub(super) fn node() -> u64 {
        0
    }

    pub(super) fn begin(_: u32) -> Option<u64> {
        None
    }

    pub(super) fn exists(_: u32) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_as_they_are_written() {
        let own = Owner::this_process();
        assert_eq!(Owner::parse(&own.to_string()), Some(own));
        let text = "0123456789abcdef-17-2";
        let parsed = Owner { node: 0x0123_4567_89ab_cdef, process: 17, begin: 2 };
        assert_eq!((Owner::parse(text), parsed.to_string().as_str()), (Some(parsed), text));
        for other in ["", "1-2-3", "0123456789abcdef-17", "0123456789abcdef-017-2", "0123456789ABCDEF-17-2"] {
            assert_eq!(Owner::parse(other), None, "{other}");
        }
        assert_eq!(Owner::parse("0123456789abcdef-17-2-1"), None);
        assert_eq!(Owner::parse("0123456789abcdef--17-2"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_processes_of_this_machine_are_known_to_have_ended() {
        let own = Owner::this_process();
        assert!(own.node != 0 && own.begin != 0 && !own.has_ended());
        // The process id was reused.
        assert!(Owner { begin: own.begin + 1, ..own }.has_ended());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Owner { process: child.id(), begin: system::begin(child.id()).unwrap(), ..own };
        assert!(!other.has_ended());
        child.kill().unwrap();
        // A zombie that has not been waited for.
        while system::begin(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(other.has_ended());
        child.wait().unwrap();
        assert!(other.has_ended());
        // A process on another machine may still be running.
        assert!(!Owner { node: own.node ^ 1, ..other }.has_ended());
        assert!(!Owner { node: 0, ..other }.has_ended());
    }
}
