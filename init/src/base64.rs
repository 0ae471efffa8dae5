//! Bytes in JSON: base64 of RFC 4648.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(data: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity((data.len() + 2) / 3 * 4);
    for group in data.chunks(3) {
        let bits = group.iter().enumerate().fold(0_u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { digit } else { b'=' });
        }
    }
    text
}

/// `None` where it is none.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut data = Vec::with_capacity(text.len() / 4 * 3);
    if text.len() % 4 != 0 {
        return None;
    }
    let groups = text.len() / 4;
    for (number, group) in text.chunks(4).enumerate() {
        let filled = group.iter().rev().take_while(|byte| **byte == b'=').count();
        if filled > 2 || (filled > 0 && number + 1 < groups) {
            return None;
        }
        let mut bits = 0;
        for byte in &group[..4 - filled] {
            bits = bits << 6 | u32::from(digit_of(*byte)?);
        }
        bits <<= 6 * filled;
        data.extend_from_slice(&bits.to_be_bytes()[1..4 - filled]);
    }
    Some(data)
}

fn digit_of(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_rfc_has_it() {
        for (data, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(data.as_bytes()), text.as_bytes());
            assert_eq!(decode(text.as_bytes()).unwrap(), data.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        for text in ["Zg", "Zg=", "Z===", "Zg==Zg==", "Z!==", "=Zg="] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
