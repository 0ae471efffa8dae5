//! The key by which a process 1 that only a network reaches knows its servers: how it comes, and that it stays nowhere.
//!
//! Either a variable has it, or a file, which `install --key` has made: pods that are made from one template have one pool's
//! key, which nothing but that sees. What it leaves is the key of this pod alone.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::json::Value;
use crate::sha256::hmac;
use crate::sys;
use crate::zygote::hexadecimal;

pub const KEY: &str = "AVIATO_KEY";
pub const KEY_FILE: &str = "AVIATO_KEY_FILE";
const POOL_KEY: &str = "AVIATO_POOL_KEY";
const POD: &str = "AVIATO_POD_UID";
const KEY_BYTES: usize = 32;
const OF_A_POD: &[u8] = b"aviato pod 1\0";

/// The key, from where it is then no more, and whether this is a pod of a pool, which may wait for long until it is anybody's.
///
/// # Errors
/// There is none, or it would stay.
pub fn take() -> Result<(Vec<u8>, bool), String> {
    let named = env::var_os(KEY_FILE);
    let key = match &named {
        Some(path) => {
            let path = Path::new(path);
            taken(path).map_err(|error| format!("{KEY_FILE}={}: {error}", path.display()))?
        }
        None => env::var_os(KEY).map(OsStringExt::into_vec),
    };
    sys::overwrite_variable(KEY.as_bytes());
    let name = if named.is_some() { KEY_FILE } else { KEY };
    let key = key_in(key).ok_or_else(|| format!("{name} has to be {KEY_BYTES} bytes in hexadecimal digits"))?;
    Ok((key, named.is_some()))
}

/// What is in a file, which is overwritten and removed.
fn taken(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(sys::O_NOFOLLOW).open(path)?;
    let mut found = Vec::new();
    (&file).take(2 * KEY_BYTES as u64 + 1).read_to_end(&mut found)?;
    io::Seek::rewind(&mut file)?;
    file.write_all(&[0; 2 * KEY_BYTES])?;
    fs::remove_file(path)?;
    Ok(Some(found))
}

/// Writes the key of the pod of this uid into a file that nobody else opens.
///
/// # Errors
/// There is no key of a pool, no uid, or the file is there already.
pub fn leave(path: &str) -> Result<(), String> {
    let pool = key_in(env::var_os(POOL_KEY).map(OsStringExt::into_vec))
        .ok_or_else(|| format!("{POOL_KEY} has to be {KEY_BYTES} bytes in hexadecimal digits"))?;
    let pod = env::var_os(POD).filter(|uid| !uid.is_empty()).ok_or_else(|| format!("{POD} is not set"))?;
    let text: String = of_pod(&pool, pod.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("{path}: {error}"))
}

fn of_pod(pool: &[u8], uid: &[u8]) -> Vec<u8> {
    hmac(pool, &[OF_A_POD, uid]).to_vec()
}

/// Nothing but a key: what is read for less than it says could be guessed.
fn key_in(text: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let text = text.filter(|text| text.len() == 2 * KEY_BYTES && text.iter().all(u8::is_ascii_hexdigit))?;
    Some(hexadecimal(Some(&Value::Text(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_all_of_its_digits() {
        assert_eq!(key_in(Some(b"0aF1".repeat(16))), Some([0x0a, 0xf1].repeat(16)));
        for wrong in
            [b"0".repeat(63), b"0".repeat(65), b"0g".repeat(32), b"".to_vec(), [&b"0".repeat(63)[..], b"\n"].concat()]
        {
            assert_eq!(key_in(Some(wrong)), None);
        }
        assert_eq!(key_in(None), None);
    }

    #[test]
    fn pods_of_a_pool_have_keys_of_their_own() {
        let pool = [7; KEY_BYTES];
        assert_eq!(of_pod(&pool, b"one").len(), KEY_BYTES);
        assert_ne!(of_pod(&pool, b"one"), of_pod(&pool, b"two"));
        assert_ne!(of_pod(&pool, b"one"), of_pod(&[8; KEY_BYTES], b"one"));
    }

    #[test]
    fn what_is_taken_from_a_file_is_there_no_more() {
        let path = env::temp_dir().join(format!("aviato-key-{}", std::process::id()));
        fs::write(&path, "ab".repeat(KEY_BYTES)).unwrap();
        assert_eq!(taken(&path).unwrap(), Some(b"ab".repeat(KEY_BYTES)));
        assert!(!path.exists());
        assert!(taken(&path).is_err());
    }
}
