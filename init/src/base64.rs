//! Bytes in JSON: base64 of RFC 4648.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const NONE: u8 = 255;
/// Of each digit of the alphabet.
const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut at = 0;
    while at < ALPHABET.len() {
        values[ALPHABET[at] as usize] = at as u8;
        at += 1;
    }
    values
};

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
    if text.len() % 4 != 0 {
        return None;
    }
    let filled = text.iter().rev().take(3).take_while(|byte| **byte == b'=').count();
    if filled > 2 {
        return None;
    }
    let whole = text.len() - if filled > 0 { 4 } else { 0 };
    let mut data = Vec::with_capacity(text.len() / 4 * 3);
    for group in text[..whole].chunks_exact(4) {
        let bits = bits_of(group)?;
        data.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    if filled > 0 {
        let bits = bits_of(&text[whole..text.len() - filled])? << (6 * filled);
        data.extend_from_slice(&bits.to_be_bytes()[1..4 - filled]);
    }
    Some(data)
}

fn bits_of(digits: &[u8]) -> Option<u32> {
    let mut bits = 0;
    for digit in digits {
        let value = VALUES[usize::from(*digit)];
        if value == NONE {
            return None;
        }
        bits = bits << 6 | u32::from(value);
    }
    Some(bits)
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
