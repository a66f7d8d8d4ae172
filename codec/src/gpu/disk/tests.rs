use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::file::PageBuffer;
use crate::{Coder, DecodeOptions, Dtype, EncodeOptions, ErrorKind, MemorySource, encode_to_vec};

/// Memory of the host that plays a slot.
pub struct Memory {
    reads: Arc<Reads>,
    address: usize,
    taken: Arc<AtomicUsize>,
}

impl Slot for Memory {
    fn reads(&self) -> &Reads {
        &self.reads
    }

    fn free(&self) -> Result<()> {
        Ok(())
    }

    fn memory(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    fn filled(&self) -> Result<()> {
        self.taken.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Fills memory, and copies from it to a slot of `bytes` as the device's copies do, which was full of `poison`.
pub fn filled(disk: &Disk, reads: Reads, bytes: usize, poison: u8) -> Result<Vec<u8>> {
    let (reads, taken) = (Arc::new(reads), Arc::new(AtomicUsize::new(0)));
    let mut buffer = PageBuffer::new(reads.bytes)?;
    buffer.fill(poison);
    let address = buffer.as_mut_ptr().expose_provenance();
    // SAFETY: The buffer is large enough, and touched when the job is done.
    let job = unsafe { disk.fill(Memory { reads: reads.clone(), address, taken: taken.clone() }) };
    let done = job.wait(&Cancel::new());
    job.stop();
    assert_eq!(taken.load(Ordering::SeqCst), usize::from(done.is_ok()));
    done?;
    let mut slot = vec![poison; bytes];
    for fetch in &reads.fetches {
        slot[fetch.place..fetch.place + fetch.len()].copy_from_slice(&buffer[reads.memory(fetch)]);
    }
    Ok(slot)
}

fn write(dir: &Path, coder: Coder) -> (PathBuf, Container) {
    let mut source = MemorySource::new();
    for (i, shape) in [[64, 192], [1700, 2048], [16, 64], [333, 500]].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..shape[0] * shape[1] * 2).map(|k| (k * k % (200 + i)) as u8 & 0x3F).collect();
        source.push(format!("t{i}"), Dtype::BF16, shape.to_vec(), bytes.into()).unwrap();
    }
    let path = dir.join("m.wcodec");
    let options = EncodeOptions { coder, ..EncodeOptions::default() };
    std::fs::write(&path, encode_to_vec(&source, &options, &mut |_| Ok(())).unwrap().0).unwrap();
    let container = Container::open(&path).unwrap();
    (path, container)
}

fn plan(container: &Container, name: &str) -> TensorPlan {
    let (tensor, tables) = container.structure_of(name, &DecodeOptions::default()).unwrap();
    TensorPlan::of(&tensor, tables.into_iter()).unwrap()
}

/// The plan of a tensor, and the packed tensor.
fn packed(container: &Container, name: &str) -> (TensorPlan, Vec<u8>) {
    let bytes = container.bytes_of(name, &DecodeOptions::default()).unwrap();
    let plan = TensorPlan::new(&bytes).unwrap();
    let mut packed = vec![0; plan.packed.len];
    plan.packed.fill(&bytes, 0, &mut packed);
    (plan, packed)
}

#[test]
fn slots_get_what_packed_rows_have() {
    let dir = tempfile::tempdir().unwrap();
    for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd, Coder::Raw] {
        let (_, container) = write(dir.path(), coder);
        for (direct, verify) in [(false, true), (true, true), (true, false)] {
            let disk = Disk::new(&container, Some(4), direct, verify).unwrap();
            for name in ["t0", "t1", "t2", "t3"] {
                let (want, whole) = packed(&container, name);
                let plan = plan(&container, name);
                assert_eq!((plan.packed.len, plan.rows()), (want.packed.len, want.rows()));
                let head = disk.head(&plan).unwrap();
                for capacity in [whole.len(), whole.len() / 3] {
                    let mut left = 0..plan.rows();
                    while !left.is_empty() {
                        let Some((rows, piece)) = PackedRows::fitting(&plan, &head, &left, capacity) else { break };
                        left.start = rows.end;
                        // Behind another piece of the same, as in a slot that two tensors share.
                        let mut reads = Reads::default();
                        reads.add(fetches(&plan, &piece, 128), 1 << 30).unwrap();
                        let twice = fetches(&plan, &piece, 128 + piece.len);
                        let bytes = reads.bytes;
                        assert!(reads.add(twice, bytes).is_err());
                        reads.add(fetches(&plan, &piece, 128 + piece.len), 1 << 30).unwrap();
                        assert!(reads.bytes == bytes && reads.extents.len() <= reads.fetches.len());
                        assert!(reads.bytes <= piece.len + margin([plan.planes.len()].into_iter()));
                        disk.check_parts(&reads).unwrap();
                        let slot = filled(&disk, reads, 128 + 2 * piece.len, 0xA5).unwrap();
                        for (range, place) in &piece.copies {
                            for at in [128 + place, 128 + piece.len + place] {
                                let (got, want) = (&slot[at..at + range.len()], &whole[range.clone()]);
                                // The bytes between the parts are not the file's.
                                let same = got.iter().zip(want).all(|(a, b)| a == b || (*a == 0xA5 && *b == 0));
                                assert!(same, "{coder} {name} {rows:?}");
                            }
                        }
                        assert!(slot[..128].iter().all(|&b| b == 0xA5));
                    }
                }
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn damage_is_found_before_anything_is_taken() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let (path, container) = write(dir.path(), Coder::Rans);
    let (disk, plan) = (Disk::new(&container, Some(3), true, true).unwrap(), plan(&container, "t1"));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let data = plan.tensor.planes[0].data;
    let flip = |at: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        // As where a disk errs, of which the system knows nothing.
        file.set_modified(modified).unwrap();
    };
    let whole = PackedRows::of(&plan, &[], &(0..plan.rows()));
    let reads = |piece: &PackedRows| {
        let mut reads = Reads::default();
        reads.add(fetches(&plan, piece, 0), 1 << 30).unwrap();
        reads
    };
    filled(&disk, reads(&whole), whole.len, 0).unwrap();
    flip(data.offset + 1000);
    let e = filled(&disk, reads(&whole), whole.len, 0).unwrap_err();
    assert_eq!((e.kind(), e.tensor_name(), e.byte_offset()), (ErrorKind::Corrupt, Some("t1"), Some(data.offset)));
    assert_eq!(e.file_path(), Some(path.as_path()), "{e}");
    // A part of a segment that is damaged elsewhere.
    let head = disk.head(&plan).unwrap();
    let part = PackedRows::of(&plan, &head, &(800..1600));
    let e = disk.check_parts(&reads(&part)).unwrap_err();
    assert_eq!((e.kind(), e.tensor_name(), e.byte_offset()), (ErrorKind::Corrupt, Some("t1"), Some(data.offset)));
    flip(data.offset + 1000);
    // One that is damaged after it was read: the job has the hash of what came first.
    let of_part = reads(&part);
    disk.check_parts(&of_part).unwrap();
    let at = of_part.fetches.iter().find(|f| f.segment == data).unwrap().file.start;
    let of_part = Arc::new(of_part);
    let mut buffer = PageBuffer::new(of_part.bytes).unwrap();
    let (address, taken) = (buffer.as_mut_ptr().expose_provenance(), Arc::new(AtomicUsize::new(0)));
    // SAFETY: The buffer is large enough, and not touched.
    let again = || unsafe { disk.fill(Memory { reads: of_part.clone(), address, taken: taken.clone() }) };
    again().wait(&Cancel::new()).unwrap();
    flip(at + 10);
    let e = again().wait(&Cancel::new()).unwrap_err();
    assert!(e.to_string().contains("not those that were read before") && e.byte_offset() == Some(at), "{e}");
    flip(at + 10);
    again().wait(&Cancel::new()).unwrap();
    assert_eq!(taken.load(Ordering::SeqCst), 2);
    // One that loses its end, or is written to.
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let e = again().wait(&Cancel::new()).unwrap_err();
    assert!(e.to_string().contains("changed while it was open") && e.tensor_name() == Some("t1"), "{e}");
    file.set_len(data.offset + 5).unwrap();
    file.set_modified(modified).unwrap();
    let e = again().wait(&Cancel::new()).unwrap_err();
    assert!(e.to_string().contains("changed while it was open") && e.byte_offset().is_some(), "{e}");
    let e = disk.head(&plan).unwrap_err();
    assert!(e.to_string().contains("changed while it was open"), "{e}");
}

#[test]
fn a_job_that_was_stopped_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, container) = write(dir.path(), Coder::Raw);
    let (disk, plan) = (Disk::new(&container, Some(2), false, true).unwrap(), plan(&container, "t1"));
    let piece = PackedRows::of(&plan, &[], &(0..plan.rows()));
    for turn in 0..20 {
        let mut reads = Reads::default();
        reads.add(fetches(&plan, &piece, 0), 1 << 30).unwrap();
        let mut buffer = PageBuffer::new(reads.bytes).unwrap();
        let (address, taken) = (buffer.as_mut_ptr().expose_provenance(), Arc::new(AtomicUsize::new(0)));
        // SAFETY: The buffer is large enough, and touched when the job was ended.
        let job = unsafe { disk.fill(Memory { reads: Arc::new(reads), address, taken: taken.clone() }) };
        if turn % 2 == 0 {
            std::thread::yield_now();
        }
        job.stop();
        buffer.fill(7);
        let before = taken.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        assert!(buffer.iter().all(|&b| b == 7));
        assert_eq!(taken.load(Ordering::SeqCst), before);
    }
    let go = Cancel::new();
    go.cancel();
    let mut reads = Reads::default();
    reads.add(fetches(&plan, &piece, 0), 1 << 30).unwrap();
    let mut buffer = PageBuffer::new(reads.bytes).unwrap();
    let (address, taken) = (buffer.as_mut_ptr().expose_provenance(), Arc::new(AtomicUsize::new(0)));
    // A thread that never comes to read: whoever waits can leave.
    let (stop, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let stuck = (0..2).map(|_| {
        let wait = wait.clone();
        Box::new(move || wait.lock().unwrap().recv().unwrap_or_default()) as Box<dyn FnOnce() + Send>
    });
    disk.readers.add(stuck, false);
    // SAFETY: The buffer is large enough, and lives as long as the threads.
    let job = unsafe { disk.fill(Memory { reads: Arc::new(reads), address, taken }) };
    assert_eq!(job.wait(&go).unwrap_err().kind(), ErrorKind::Cancelled);
    drop(stop);
    job.wait(&Cancel::new()).unwrap();
    let in_memory = Container::from_bytes(std::fs::read(container.path().unwrap()).unwrap()).unwrap();
    let e = Disk::new(&in_memory, None, true, true).unwrap_err();
    assert!(e.kind() == ErrorKind::Input && e.to_string().contains("in memory"), "{e}");
}
