//! Kernels on slots that were filled from a file.

use super::*;
use crate::gpu::disk::{Disk, Reads, fetches, tests::filled};

/// The bytes between the parts of a packed tensor are whatever was in the slot before: kernels read them, and nothing depends on them.
#[test]
fn slots_that_were_filled_from_a_file_decode_to_the_whole() {
    let mut rng = StdRng::seed_from_u64(16);
    let dir = tempfile::tempdir().unwrap();
    for (i, o) in options().into_iter().chain(rate::options().into_iter().step_by(5)).enumerate() {
        let o = EncodeOptions { transpose: if i % 2 == 0 { vec!["w0".into()] } else { Vec::new() }, ..o };
        let path = dir.path().join("m.wcodec");
        let source = sample(&mut rng, &[vec![134, 150], vec![3, 20, 128]]);
        let o = with_columns(&mut rng, &source, &o);
        std::fs::write(&path, encode(&source, &o)).unwrap();
        let container = Container::open(&path).unwrap();
        let disk = Disk::new(&container, Some(2), i % 3 != 0, true).unwrap();
        for name in ["w0", "w1"] {
            let parts = container.bytes_of(name, &oracle()).unwrap();
            let Some(mut whole) = Loaded::new(&parts) else { continue };
            let want = run_all(std::slice::from_mut(&mut whole), OutputKind::F32).remove(0).bytes;
            let (tensor, tables) = container.structure_of(name, &oracle()).unwrap();
            let plan = TensorPlan::of(&tensor, tables.into_iter()).unwrap();
            let head = disk.head(&plan).unwrap();
            for capacity in [PackedRows::bound_of_strip(&tensor), whole.packed.len()] {
                let mut got = vec![POISON; want.len()];
                let mut left = 0..plan.rows();
                while !left.is_empty() {
                    let (rows, piece) = PackedRows::fitting(&plan, &head, &left, capacity).unwrap();
                    left.start = rows.end;
                    let mut reads = Reads::default();
                    reads.add(fetches(&plan, &piece, 0), 1 << 30).unwrap();
                    disk.check_parts(&reads).unwrap();
                    let mut packed = Buffer::new(piece.len);
                    packed.copy_from_slice(&filled(&disk, reads, piece.len, rng.random()).unwrap());
                    whole.decode_piece(&piece, packed, rows, &mut got);
                }
                assert!(got == want, "{name}: {} {:?} in pieces of {capacity}", o.coder, o.layout);
            }
        }
    }
}
