//! Is the key of the records of one direction, whichever cipher the key is for.

use aegis::aegis128x2::Aegis128X2;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use rustls::ConnectionTrafficSecrets;

/// Holds the length of the tag, which is the same with every cipher.
pub(super) const TAG_BYTES: usize = 16;
/// The content type of all that follows the handshake, but alerts (RFC 8446, section 5.1).
pub(super) const APPLICATION_DATA: u8 = 23;

/// A direction's traffic key and nonce mask. A record is sealed and opened under the mask with the record's number in
/// its last eight bytes (RFC 8446, section 5.3).
pub(super) enum Key {
    /// The key of a cipher that TLS 1.3 has.
    OfSuite { key: LessSafeKey, iv: [u8; 12] },
    /// A key of AEGIS-128X2 (RFC 10032), whose nonces are longer.
    Aegis128X2 { key: [u8; 16], iv: [u8; 16] },
}

/// The record does not open: something changed it, or its key or number is another.
pub(super) struct DoesNotOpen;

impl From<Unspecified> for DoesNotOpen {
    fn from(_: Unspecified) -> DoesNotOpen {
        DoesNotOpen
    }
}

impl Key {
    /// Takes the key that TLS gives out.
    pub(super) fn new(secrets: ConnectionTrafficSecrets) -> Result<Key, rustls::Error> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(rustls::Error::General("a cipher without record protection here".into())),
        };
        Key::of_suite(algorithm, key.as_ref(), iv.as_ref())
            .ok_or_else(|| rustls::Error::General("a key that does not fit its cipher".into()))
    }

    /// Makes a key of a cipher that TLS 1.3 has. `None`: the lengths do not fit.
    pub(super) fn of_suite(algorithm: &'static Algorithm, key: &[u8], iv: &[u8]) -> Option<Key> {
        let key = UnboundKey::new(algorithm, key).ok()?;
        Some(Key::OfSuite { key: LessSafeKey::new(key), iv: iv.try_into().ok()? })
    }

    /// Seals `plain` and the content type behind it into `body`, which has room for both and the tag.
    pub(super) fn seal(&self, number: u64, header: &[u8], plain: &[u8], body: &mut [u8]) -> Result<(), Unspecified> {
        let (text, end) = body.split_at_mut(plain.len());
        match self {
            Key::OfSuite { key, iv } => {
                let (nonce, aad) = (suite_nonce(iv, number), Aad::from(header));
                key.seal_out_of_place_scatter(nonce, aad, plain, text, &[APPLICATION_DATA], end)
            }
            Key::Aegis128X2 { key, iv } => {
                let mut cipher = Aegis128X2::<TAG_BYTES>::new(key, &masked(iv, number)).encryptor(header);
                let (kind, tag) = end.split_at_mut(1);
                cipher.update(plain, text);
                cipher.update(&[APPLICATION_DATA], kind);
                tag.copy_from_slice(&cipher.finalize());
                Ok(())
            }
        }
    }

    /// Seals as [`Self::seal`] does, what lies at the beginning of `body`.
    pub(super) fn seal_in_place(&self, number: u64, header: &[u8], body: &mut [u8]) -> Result<(), Unspecified> {
        let text_bytes = body.len() - TAG_BYTES;
        match self {
            Key::OfSuite { key, iv } => {
                let (text, end) = body.split_at_mut(text_bytes - 1);
                let (nonce, aad) = (suite_nonce(iv, number), Aad::from(header));
                key.seal_in_place_scatter(nonce, aad, text, &[APPLICATION_DATA], end)
            }
            Key::Aegis128X2 { key, iv } => {
                let (text, tag) = body.split_at_mut(text_bytes);
                text[text_bytes - 1] = APPLICATION_DATA;
                let cipher = Aegis128X2::<TAG_BYTES>::new(key, &masked(iv, number));
                tag.copy_from_slice(&cipher.encrypt_in_place(text, header));
                Ok(())
            }
        }
    }

    /// Opens `body` into `out`, which is shorter by the tag. If that fails, what `out` holds is of no use.
    pub(super) fn open(&self, number: u64, header: &[u8], body: &[u8], out: &mut [u8]) -> Result<(), DoesNotOpen> {
        let (text, tag) = body.split_last_chunk::<TAG_BYTES>().ok_or(DoesNotOpen)?;
        match self {
            Key::OfSuite { key, iv } => {
                key.open_separate_gather(suite_nonce(iv, number), Aad::from(header), text, tag, out)?;
            }
            Key::Aegis128X2 { key, iv } => {
                let cipher = Aegis128X2::<TAG_BYTES>::new(key, &masked(iv, number));
                let mut cipher = cipher.decryptor(header, out);
                cipher.update(text).map_err(|_| DoesNotOpen)?;
                cipher.finalize(tag).map_err(|_| DoesNotOpen)?;
            }
        }
        Ok(())
    }

    /// Opens `body` where it lies. Returns the part of it that is before the tag.
    pub(super) fn open_in_place<'b>(
        &self,
        number: u64,
        header: &[u8],
        body: &'b mut [u8],
    ) -> Result<&'b [u8], DoesNotOpen> {
        match self {
            Key::OfSuite { key, iv } => Ok(key.open_in_place(suite_nonce(iv, number), Aad::from(header), body)?),
            Key::Aegis128X2 { key, iv } => {
                let (text, tag) = body.split_last_chunk_mut::<TAG_BYTES>().ok_or(DoesNotOpen)?;
                let cipher = Aegis128X2::<TAG_BYTES>::new(key, &masked(iv, number));
                cipher.decrypt_in_place(text, tag, header).map_err(|_| DoesNotOpen)?;
                Ok(text)
            }
        }
    }
}

/// Returns a nonce: the mask, with the record's number in its last eight bytes.
fn masked<const BYTES: usize>(iv: &[u8; BYTES], number: u64) -> [u8; BYTES] {
    let mut nonce = *iv;
    nonce[BYTES - 8..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
    nonce
}

fn suite_nonce(iv: &[u8; 12], number: u64) -> Nonce {
    Nonce::assume_unique_for_key(masked(iv, number))
}
