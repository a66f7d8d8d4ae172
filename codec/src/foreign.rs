//! Recognizes files of unexpected formats and advises on them.

use std::path::Path;

use crate::container::MAGIC;

/// The length of a file's beginning that is enough to recognize it, bytes.
pub(crate) const HEAD_BYTES: usize = 512;

/// The actual format of a file, and advice on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// The format, as in "this is …".
    pub(crate) what: &'static str,
    pub(crate) advice: &'static str,
}

const CONTAINER: Foreign = Foreign {
    what: "a wcodec container",
    advice: "wcodec decode FILE -o OUT.safetensors makes a checkpoint of it again",
};
const SAFETENSORS: Foreign =
    Foreign { what: "a .safetensors file", advice: "encode it first: wcodec encode FILE -o OUT.wcodec" };
const GGUF: &str = "a GGUF file";
const PICKLE: &str = "convert it in Python: safetensors.torch.save_file(torch.load(FILE, weights_only=True), OUT), or \
                      with transformers' from_pretrained and save_pretrained; then encode that";
const UNPACK_TAR: &str = "unpack it first: tar -xf FILE";

/// Advice on a big-endian GGUF file.
pub(crate) const LITTLE_ENDIAN: &str =
    "take a little-endian one, or convert it: gguf_convert_endian.py of llama.cpp, with the order 'little'";

/// Advice on a split GGUF file.
pub(crate) const MERGE_GGUF: &str = "put the parts together (llama-gguf-split --merge FIRST OUT.gguf), and encode that; or encode the .safetensors \
     checkpoint that it was made from";

/// Whether a file begins as big-endian GGUF files do.
pub(crate) fn is_big_endian_gguf(head: &[u8]) -> bool {
    // The version field: no version exceeds 65,535.
    matches!(head, [b'G', b'G', b'U', b'F', 0, 0, a, b, ..] if (*a, *b) != (0, 0))
}

/// Whether a name is that of a part of a split file: `NAME-00001-of-00003.gguf`.
fn is_part(path: &Path) -> bool {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let stem =
        path.extension().filter(|e| e.eq_ignore_ascii_case("gguf")).and(path.file_stem()).and_then(|s| s.to_str());
    let parts =
        stem.and_then(|stem| stem.rsplit_once("-of-")).and_then(|(rest, all)| Some((rest.rsplit_once('-')?.1, all)));
    parts.is_some_and(|(this, all)| number(this) && number(all))
}

/// Formats with magic bytes.
const MAGICS: [(&[u8], Foreign); 15] = [
    (&MAGIC, CONTAINER),
    (b"GGUF", Foreign { what: GGUF, advice: "encode it first: wcodec encode FILE -o OUT/" }),
    (
        b"version https://git-lfs.github.com/spec/",
        Foreign {
            what: "a Git LFS pointer, which stands for a file that was not fetched",
            advice: "fetch it: git lfs pull, or hf download OWNER/MODEL",
        },
    ),
    (b"DTSZ", Foreign { what: "a legacy blob of one layer", advice: "decode it with wcodec.Decoder().decode_layer" }),
    (
        b"\x93NUMPY",
        Foreign {
            what: "a NumPy array",
            advice: "store it in Python: wcodec.save_file({NAME: numpy.load(FILE)}, OUT)",
        },
    ),
    (
        b"\x89HDF\r\n\x1a\n",
        Foreign {
            what: "an HDF5 file, such as Keras writes",
            advice: "take the model's .safetensors checkpoint, or convert it in Python",
        },
    ),
    (b"\x1f\x8b", Foreign { what: "a gzip file", advice: "unpack it first: gunzip FILE, or tar -xzf FILE" }),
    (b"\x28\xb5\x2f\xfd", Foreign { what: "a zstd file", advice: "unpack it first: zstd -d FILE" }),
    (b"\xfd7zXZ\0", Foreign { what: "an xz file", advice: "unpack it first: unxz FILE, or tar -xJf FILE" }),
    (b"BZh", Foreign { what: "a bzip2 file", advice: "unpack it first: bunzip2 FILE, or tar -xjf FILE" }),
    (b"7z\xbc\xaf\x27\x1c", Foreign { what: "a 7z archive", advice: "unpack it first: 7z x FILE" }),
    (b"%PDF-", Foreign { what: "a PDF", advice: "check the path" }),
    (b"\x80\x02", Foreign { what: "a Python pickle, as old versions of torch.save write", advice: PICKLE }),
    (b"\x80\x04", Foreign { what: "a Python pickle", advice: PICKLE }),
    (b"\x80\x05", Foreign { what: "a Python pickle", advice: PICKLE }),
];

/// As [`known`], also considering the file's name.
pub(crate) fn known_as(path: &Path, head: &[u8], length: u64) -> Option<Foreign> {
    let format = known(head, length)?;
    if format.what == GGUF && is_part(path) {
        return Some(Foreign { what: "a part of a split GGUF file", advice: MERGE_GGUF });
    }
    Some(format)
}

/// The format of a file that begins with these bytes, at most [`HEAD_BYTES`], if it is one that users are likely to
/// have.
pub(crate) fn known(head: &[u8], length: u64) -> Option<Foreign> {
    if is_safetensors(head, length) {
        return Some(SAFETENSORS);
    }
    if is_big_endian_gguf(head) {
        return Some(Foreign { what: "a big-endian GGUF file", advice: LITTLE_ENDIAN });
    }
    let format = MAGICS.iter().find(|(magic, _)| head.starts_with(magic)).map(|&(_, foreign)| foreign);
    format.or_else(|| archive(head)).or_else(|| onnx(head)).or_else(|| text(head))
}

/// Whether it may begin with the header of a `.safetensors` file.
fn is_safetensors(head: &[u8], length: u64) -> bool {
    let Some((size, rest)) = head.split_first_chunk::<8>() else { return false };
    let size = u64::from_le_bytes(*size);
    rest.first() == Some(&b'{') && size >= 2 && size.checked_add(8).is_some_and(|end| end <= length)
}

/// The format of an archive, by its first entry's name.
fn archive(head: &[u8]) -> Option<Foreign> {
    if head.get(257..262) == Some(b"ustar") {
        return Some(Foreign { what: "a tar archive", advice: UNPACK_TAR });
    }
    if !head.starts_with(b"PK\x03\x04") {
        return None;
    }
    let size = head.get(26..28).map_or(0, |b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let name = head.get(30..).map_or(&[][..], |rest| &rest[..size.min(rest.len())]);
    let ends = |end: &[u8]| name.ends_with(end);
    Some(if ends(b"/data.pkl") || ends(b"/version") || ends(b"/byteorder") || ends(b"/.format_version") {
        Foreign { what: "a file of torch.save (.bin, .pt or .pth)", advice: PICKLE }
    } else if ends(b".npy") {
        Foreign {
            what: "a file of NumPy arrays (.npz)",
            advice: "store them in Python: wcodec.save_file(dict(numpy.load(FILE)), OUT)",
        }
    } else {
        Foreign { what: "a zip archive", advice: "unpack it first: unzip FILE" }
    })
}

/// A protobuf message that begins as ONNX models do: the version of the format, then another field of a model.
fn onnx(head: &[u8]) -> Option<Foreign> {
    let [0x08, 1..=64, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42, ..] = head else { return None };
    Some(Foreign {
        what: "an ONNX model, by its first bytes",
        advice: "take the .safetensors checkpoint that it was exported from",
    })
}

fn text(head: &[u8]) -> Option<Foreign> {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let begins = |with: &[u8]| text.get(..with.len()).is_some_and(|t| t.eq_ignore_ascii_case(with));
    if begins(b"<!doctype html") || begins(b"<html") || begins(b"<head") {
        return Some(Foreign {
            what: "an HTML page, as a download from the wrong address leaves it",
            advice: "download the file itself: hf download OWNER/MODEL, or the address with 'resolve' in the place of 'blob'",
        });
    }
    if begins(b"<?xml") {
        return Some(Foreign {
            what: "an XML file, often what a server says of an error",
            advice: "download it again",
        });
    }
    if text.starts_with(b"{") && text.iter().all(|&b| b >= b' ' || b.is_ascii_whitespace()) {
        return Some(Foreign {
            what: "a JSON file",
            advice: "name the file with the weights, or the folder that it is in",
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(head: &[u8]) -> Option<&'static str> {
        known(head, 1 << 20).map(|f| f.what)
    }

    fn zip(name: &str) -> Vec<u8> {
        let mut head = b"PK\x03\x04".to_vec();
        head.resize(26, 0);
        head.extend((name.len() as u16).to_le_bytes());
        head.extend([0, 0]);
        head.extend(name.as_bytes());
        head
    }

    #[test]
    fn files_are_known_by_their_beginning() {
        let mut tar = vec![b'a'; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let cases: [(&[u8], &str); 17] = [
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
            (b"\n <!DOCTYPE html><html>", "HTML"),
            (b"<html lang=en>", "HTML"),
            (b"\x08\x08\x12\x07pytorch", "ONNX"),
            (b"\x80\x02}q\x00", "pickle"),
            (b"\x80\x05\x95", "pickle"),
            (&zip("archive/data.pkl"), "torch.save"),
            (&zip("model/.format_version"), "torch.save"),
            (&zip("weights.npy"), "NumPy arrays"),
            (&zip("readme.txt"), "zip archive"),
            (&tar, "tar archive"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"DTSZ\0", "legacy blob"),
            (b"{\"weight_map\": {}}", "JSON"),
            (b"\x10\0\0\0\0\0\0\0{\"a\":{}}", ".safetensors"),
            (b"\x80\x02\0\0\0\0\0\0{\"a\":{}}", ".safetensors"),
        ];
        for (head, expected) in cases {
            assert!(what(head).is_some_and(|w| w.contains(expected)), "{expected}: {:?}", what(head));
        }
        assert_eq!(known(&MAGIC, 64), Some(CONTAINER));
    }

    #[test]
    fn kinds_of_gguf_files_are_told_apart() {
        let of = |name: &str, head: &[u8]| known_as(Path::new(name), head, 1 << 20).map(|f| f.what);
        let little = b"GGUF\x03\0\0\0\0\0\0\0";
        assert_eq!(of("m.gguf", little), Some("a GGUF file"));
        assert_eq!(of("m-00001-of-00003.gguf", little), Some("a part of a split GGUF file"));
        for whole in ["m-1-of-3.gguf", "m-00001-of-00003.bin", "00001-of-00003.gguf", "m-of-00003.gguf"] {
            assert_eq!(of(whole, little), Some("a GGUF file"), "{whole}");
        }
        for version in 1..4 {
            assert_eq!(
                of("m-00001-of-00003.gguf", &[b'G', b'G', b'U', b'F', 0, 0, 0, version]),
                Some("a big-endian GGUF file")
            );
        }
        assert_eq!(of("m.gguf", b"GGUF"), Some("a GGUF file"));
    }

    #[test]
    fn nothing_is_made_of_other_bytes() {
        let heads: [&[u8]; 8] =
            [b"", b"P", b"PK", b"\x08", b"\x08\x08", b"\xff\xd8\xff", b"{\0\x01\x02", b"\xff\0\0\0\0\0\0\xff{"];
        for head in heads {
            assert_eq!(what(head), None, "{head:?}");
        }
        // A name that extends beyond the bytes read.
        let mut long = zip("x");
        long[26..28].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(what(&long), Some("a zip archive"));
        // A length that does not fit the file cannot belong to a header.
        assert_eq!(known(b"\x10\0\0\0\0\0\0\0{", 20), None);
    }
}
