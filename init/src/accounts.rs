//! Users and groups as the files of the sandbox tell of them, for commands that are not root's.

use crate::errors::Refused;
use crate::paths::{open_path, Whose};
use crate::sys::{self, AT_FDCWD, O_NONBLOCK, O_RDONLY};

const USERS: &[u8] = b"/etc/passwd";
const GROUPS: &[u8] = b"/etc/group";
/// Longer ones are not read: whoever wrote them has time, and process 1 has not.
const LONGEST_FILE_BYTES: usize = 1 << 20;
/// As many as the kernel lets a process have, a good deal less.
const MOST_GROUPS: usize = 1024;
const ROOT: [&[u8]; 2] = [b"root", b"0"];

/// Who a command is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub name: Vec<u8>,
    pub home: Vec<u8>,
}

/// Whom a text like `bob`, `1000`, `bob:staff` or `1000:50` means; `None` is root, who process 1 is.
///
/// # Errors
/// There is no such user or group, or it has a number that there is not in here.
pub fn find(said: &[u8]) -> Result<Option<Account>, Refused> {
    if said.is_empty() || ROOT.contains(&said) {
        return Ok(None);
    }
    let found = among(said, &read(USERS)?, &read(GROUPS)?)?;
    let ids = mapped();
    for (what, number) in [("user", found.uid), ("group", found.gid)] {
        if u64::from(number) >= ids {
            let there = if ids <= 1 { "there is root alone".to_owned() } else { format!("they go to {}", ids - 1) };
            let text = String::from_utf8_lossy(said);
            let why = format!("user '{text}': the {what} has the number {number}, and in this sandbox {there}");
            return Err(refused(format!("{why}; `aviato doctor` says what more would take")));
        }
    }
    Ok(Some(found))
}

fn refused(message: String) -> Refused {
    Refused::new("VALIDATION", "user", message)
}

/// How many users there are, from 0 on.
pub fn mapped() -> u64 {
    let map = read(b"/proc/self/uid_map").unwrap_or_default();
    let text = String::from_utf8_lossy(&map);
    let ends = text.lines().filter_map(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|one| one.parse().ok()).collect();
        match numbers[..] {
            [first, _, count] => Some(first.saturating_add(count)),
            _ => None,
        }
    });
    ends.max().unwrap_or(1)
}

/// The same, pure: by what is in both files.
pub fn among(said: &[u8], users: &[u8], groups: &[u8]) -> Result<Account, Refused> {
    let unknown = |what: &str, name: &[u8], file: &[u8]| {
        let (name, file) = (String::from_utf8_lossy(name), String::from_utf8_lossy(file));
        refused(format!("there is no {what} '{name}' in {file} of the sandbox"))
    };
    let (user, group) = match said.iter().position(|byte| *byte == b':') {
        Some(at) => (&said[..at], Some(&said[at + 1..])),
        None => (said, None),
    };
    let number = number_of(user);
    let entry = lines(users, 7).find(|fields| match number {
        Some(number) => number_of(fields[2]) == Some(number),
        None => !user.is_empty() && fields[0] == user,
    });
    let uid = entry.as_ref().map_or(number, |fields| number_of(fields[2]));
    let uid = uid.ok_or_else(|| unknown("user", user, USERS))?;
    let name = entry.as_ref().map_or(user, |fields| fields[0]).to_vec();
    let home = entry.as_ref().map_or(&b""[..], |fields| fields[5]);
    let home = if home.starts_with(b"/") { home.to_vec() } else { b"/".to_vec() };
    let (gid, groups) = match group {
        Some(group) => {
            let named = || lines(groups, 4).find(|fields| !group.is_empty() && fields[0] == group);
            let found = number_of(group).or_else(|| named().and_then(|fields| number_of(fields[2])));
            (found.ok_or_else(|| unknown("group", group, GROUPS))?, Vec::new())
        }
        None => {
            let own = entry.as_ref().and_then(|fields| number_of(fields[3])).unwrap_or(0);
            let has = |fields: &Vec<&[u8]>| fields[3].split(|byte| *byte == b',').any(|member| member == &name[..]);
            let others = lines(groups, 4).filter(has).filter_map(|fields| number_of(fields[2]));
            (own, others.filter(|gid| *gid != own).take(MOST_GROUPS).collect())
        }
    };
    Ok(Account { uid, gid, groups, name, home })
}

/// Lines of so many fields.
fn lines(content: &[u8], count: usize) -> impl Iterator<Item = Vec<&[u8]>> {
    let split = |line| <[u8]>::split(line, |byte| *byte == b':').collect::<Vec<&[u8]>>();
    content.split(|byte| *byte == b'\n').map(split).filter(move |fields| fields.len() >= count)
}

/// A number in decimal that can be an id: the largest one means "as before" to the kernel.
fn number_of(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|number| *number < u32::MAX)
}

/// A file as far as it is a short one; nothing where there is none.
fn read(path: &[u8]) -> Result<Vec<u8>, Refused> {
    let whose = if path.starts_with(b"/proc/") { Whose::Anybodys } else { Whose::TheSandboxs };
    let opened = open_path(path, O_RDONLY | O_NONBLOCK, AT_FDCWD, whose);
    let fd = match opened {
        Err(error) if sys::number_of(&error) == sys::ENOENT => return Ok(Vec::new()),
        opened => opened.map_err(|error| Refused::os(path, &error))?,
    };
    let mut content = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        match sys::read_some(&fd, &mut piece).map_err(|error| Refused::os(path, &error))? {
            0 => return Ok(content),
            count => content.extend_from_slice(&piece[..count]),
        }
        if content.len() > LONGEST_FILE_BYTES {
            let path = String::from_utf8_lossy(path);
            return Err(refused(format!("{path} of the sandbox has more than {LONGEST_FILE_BYTES} bytes")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n# comment\nbob:x:1000:100:Bob,,:/home/bob:/bin/sh\nodd:x:y:z::/:\n\
        lone:x:77:88::relative:\nshort:x:5\nhuge:x:4294967295:0::/:\n";
    const GROUPS: &[u8] = b"root:x:0:\nusers:x:100:\nstaff:x:50:al,bob\nwheel:x:10:bob\nodd:x:q:bob\nbobs:x:1:bobby\n";

    fn found(said: &str) -> Option<(u32, u32, Vec<u32>, String, String)> {
        let account = among(said.as_bytes(), USERS, GROUPS).ok()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((account.uid, account.gid, account.groups.clone(), text(&account.name), text(&account.home)))
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let bob = |gid, groups: &[u32]| Some((1000, gid, groups.to_vec(), "bob".to_owned(), "/home/bob".to_owned()));
        assert_eq!(found("bob"), bob(100, &[50, 10]));
        assert_eq!(found("1000"), bob(100, &[50, 10]));
        assert_eq!(found("bob:staff"), bob(50, &[]));
        assert_eq!(found("1000:7"), bob(7, &[]));
        assert_eq!(found("4242"), Some((4242, 0, vec![], "4242".to_owned(), "/".to_owned())));
        assert_eq!(found("4242:staff"), Some((4242, 50, vec![], "4242".to_owned(), "/".to_owned())));
        assert_eq!(found("lone"), Some((77, 88, vec![], "lone".to_owned(), "/".to_owned())));
    }

    #[test]
    fn what_is_no_user_is_none() {
        for said in [
            "",
            ":",
            ":staff",
            "alice",
            "odd",
            "short",
            "huge",
            "bob:",
            "bob:nobody",
            "-1",
            "+7",
            "1e3",
            "bob:-1",
            "4294967295",
            "99999999999",
            "1000:4294967295",
            "# comment",
            " bob",
        ] {
            assert_eq!(found(said), None, "{said:?}");
        }
    }
}
