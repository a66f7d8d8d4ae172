//! Handmade zstd frames (RFC 8878), in which every field can have a value that writers do not produce.

/// A frame of one raw block.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    pub content: &'a [u8],
    /// The content size in the frame's header, if any.
    pub size: Option<u32>,
    /// Window descriptor; `None`: a single segment.
    pub window: Option<u8>,
    pub dictionary: Option<u8>,
    /// Low 32 bits of xxh64 of the content; libzstd compares it.
    pub checksum: Option<u32>,
}

impl<'a> Frame<'a> {
    /// A frame that the format allows.
    pub fn of(content: &'a [u8]) -> Self {
        Self { content, size: Some(content.len() as u32), window: None, dictionary: None, checksum: None }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let descriptor = u8::from(self.size.is_some()) << 7
            | u8::from(self.window.is_none()) << 5
            | u8::from(self.checksum.is_some()) << 2
            | u8::from(self.dictionary.is_some());
        let mut out = vec![0x28, 0xB5, 0x2F, 0xFD, descriptor];
        out.extend(self.window);
        out.extend(self.dictionary);
        match self.size {
            Some(n) => out.extend_from_slice(&n.to_le_bytes()),
            // A single segment without a size of 2, 4 or 8 bytes has one of 1 byte.
            None if self.window.is_none() => out.push(self.content.len() as u8),
            None => {}
        }
        let block = (self.content.len() as u32) << 3 | 1;
        out.extend_from_slice(&block.to_le_bytes()[..3]);
        out.extend_from_slice(self.content);
        out.extend(self.checksum.iter().flat_map(|c| c.to_le_bytes()));
        out
    }
}

/// A skippable frame, which decoders ignore.
pub fn skippable(content: &[u8]) -> Vec<u8> {
    let mut out = vec![0x50, 0x2A, 0x4D, 0x18];
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.extend_from_slice(content);
    out
}
