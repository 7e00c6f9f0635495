//! Any bytes as a page whose checksum holds, and ops on it.
//!
//! Input: two bytes with the image's length, the image, then a log record whose writes are applied
//! to the page one after another.
#![no_main]

use bytes::Bytes;
use larder_core::commit::PageKind;
use larder_core::id::{PageId, PageNo, VolumeId};
use larder_core::page::{HEADER_BYTES, Page, Record};
use larder_core::record::LogRecord;
use larder_core::wire::decode_record;
use libfuzzer_sys::fuzz_target;

const PAGE_BYTES: u32 = 4096;

fuzz_target!(|data: &[u8]| {
    let id = PageId { volume: VolumeId(7), page: PageNo(9) };
    let Some((length, data)) = data.split_first_chunk::<2>() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(data.len());
    let (image, ops) = data.split_at(length);
    let as_is = Bytes::copy_from_slice(image);
    if let Ok(page) = Page::decode(id, as_is.clone()) {
        assert_eq!(page.encode(id), as_is);
    }
    let mut page = Page::decode(id, mended(id, image)).unwrap_or(Page::empty(PageKind::Slotted));
    use_all(&page);
    let Ok(LogRecord::Commit { writes, .. }) = decode_record(Bytes::copy_from_slice(ops)) else {
        return;
    };
    for write in writes {
        let before = page.clone();
        match page.apply(&write.op, PAGE_BYTES) {
            Ok(_) => assert!(page.encode(id).len() <= image.len().max(PAGE_BYTES as usize)),
            Err(_) => assert_eq!(page, before),
        }
        assert_eq!(Page::decode(id, page.encode(id)), Ok(page.clone()));
    }
    use_all(&page);
});

/// The image with magic, format, length and checksum set, so that what follows them is reached.
fn mended(id: PageId, image: &[u8]) -> Bytes {
    let mut image = image.to_vec();
    image.resize(image.len().max(HEADER_BYTES), 0);
    let content = (image.len() - HEADER_BYTES) as u32;
    image[..5].copy_from_slice(b"LRDp\x01");
    image[16..20].copy_from_slice(&content.to_le_bytes());
    let seed = crc32c::crc32c(&id.volume.0.to_le_bytes());
    let seed = crc32c::crc32c_append(seed, &id.page.0.to_le_bytes());
    let crc = crc32c::crc32c_append(seed, &image[..28]);
    let crc = crc32c::crc32c_append(crc, &image[HEADER_BYTES..]);
    image[28..32].copy_from_slice(&crc.to_le_bytes());
    image.into()
}

fn use_all(page: &Page) {
    for (slot, generation, record) in page.records() {
        let (found, bytes) = page.get(slot).expect("it is listed");
        assert_eq!((found, &bytes[..]), (generation, record));
        Record::decode(bytes).expect("pages hold records only");
        assert_eq!(page.next_generation(slot), None);
    }
    assert_eq!(page.records().count(), page.filled());
    if let Some(slot) = page.free_slot() {
        assert!(page.next_generation(slot).is_some());
    }
    let _content = page.raw();
}
