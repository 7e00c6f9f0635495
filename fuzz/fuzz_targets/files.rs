//! Any bytes as the records of a volume of files: the first byte says of which kind. They are in
//! objects, which any node that may write to the volume can make.
#![no_main]

use bytes::Bytes;
use larder::core::id::PageNo;
use larder::fs::record::{
    Content, Inode, Root, TrieHeader, XATTR_HEAD_BYTES, XattrList, decode_entries, decode_xattr_head,
    encode_entries,
};
use larder::fs::check_decoders;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    match kind % 6 {
        0 => {
            if let Ok(root) = Root::decode(data) {
                assert_eq!(Root::decode(&root.encode()), Ok(root));
            }
        }
        1 => {
            if let Ok(inode) = Inode::decode(data) {
                if let Content::Pages(extents) = &inode.content {
                    // Whatever it says, its pages are pages.
                    let ends = [0, extents.high.saturating_sub(1), extents.high];
                    let pages = ends.into_iter().filter_map(|index| extents.page(index));
                    assert!(pages.into_iter().all(|page| page.0 > 0 && page.0 < PageNo::LIMIT));
                    assert!(!extents.has_holes(0) || extents.sparse);
                }
                assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
            }
        }
        2 => {
            if let Ok(entries) = decode_entries(&Bytes::copy_from_slice(data)) {
                assert_eq!(decode_entries(&encode_entries(&entries)), Ok(entries));
            }
        }
        5 => check_decoders(data),
        4 => {
            // The first page of a list in pages: as much of it as its head says.
            if let Ok(length) = decode_xattr_head(data) {
                let list = Bytes::copy_from_slice(&data[XATTR_HEAD_BYTES..]);
                if let Ok(list) = XattrList::decode(&list.slice(..length.min(list.len()))) {
                    assert_eq!(XattrList::decode(&list.encode()), Ok(list));
                }
            }
        }
        _ => {
            if let Ok(header) = TrieHeader::decode(data) {
                assert_eq!(TrieHeader::decode(&header.encode()), Ok(header));
            }
        }
    }
});
