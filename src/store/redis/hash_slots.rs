//! The names that tags have in keys, and their hash slots.

use crate::engine::algorithms::tag::TAGS;

const HASH_SLOTS: u16 = 16_384;

/// The hash slots for each tag.
const SHARE: u16 = HASH_SLOTS / TAGS as u16;

/// The name of each tag in the keys of a cluster: the smallest number whose hash slot is in the tag's share.
///
/// Nodes with as many hash slots then have as many tags, give or take one. The numbers from 0 to 63 do not spread like that: of 16
/// nodes, four have one of them, and two have eight.
pub const NAMES: [u16; TAGS as usize] = {
    let mut names = [None; TAGS as usize];
    let (mut name, mut missing) = (0, TAGS);
    while missing > 0 {
        let tag = (slot(name) / SHARE) as usize;
        if names[tag].is_none() {
            names[tag] = Some(name);
            missing -= 1;
        }
        name += 1;
    }
    let mut all = [0; TAGS as usize];
    let mut tag = 0;
    while tag < all.len() {
        if let Some(name) = names[tag] {
            all[tag] = name;
        }
        tag += 1;
    }
    all
};

/// The hash slot of each tag.
pub(super) const SLOTS: [u16; TAGS as usize] = {
    let mut slots = [0; TAGS as usize];
    let mut tag = 0;
    while tag < slots.len() {
        slots[tag] = slot(NAMES[tag]);
        tag += 1;
    }
    slots
};

/// The hash slot of a number in decimal: CRC-16/XMODEM modulo 16,384 (Redis Cluster specification).
const fn slot(number: u16) -> u16 {
    let (mut crc, mut power): (u16, u16) = (0, 10_000);
    while power > 0 {
        if number >= power || power == 1 {
            crc ^= (b'0' as u16 + number / power % 10) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
                bit += 1;
            }
        }
        power /= 10;
    }
    crc % HASH_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of `redis-cli CLUSTER KEYSLOT {NUMBER}`.
    #[test]
    fn hash_slots_are_those_that_redis_computes() {
        assert_eq!([0, 9, 17, 63, 343].map(slot), [13_907, 10_106, 12_304, 10_499, 5_012]);
    }

    /// With other names, all buckets of a cluster would be forgotten.
    #[test]
    fn names_do_not_change() {
        let [first, second, .., last] = NAMES;
        assert_eq!((first, second, NAMES[54], last), (10, 18, 0, 40));
    }

    #[test]
    fn nodes_with_equal_ranges_have_equally_many_tags() {
        for nodes in 1..=16_u16 {
            let mut tags = vec![0; nodes.into()];
            for slot in SLOTS {
                tags[usize::from(slot) * usize::from(nodes) / usize::from(HASH_SLOTS)] += 1;
            }
            let (least, most) = (tags.iter().min().unwrap(), tags.iter().max().unwrap());
            assert!(most - least <= 2, "{nodes}: {tags:?}");
        }
    }
}
