//! Slots come, are taken, and go without a trace.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Instant;

use futures_util::future::{join_all, try_join_all};
use nix::errno::Errno;
use sandpiper_network::slots::{SlotError, Slots};

use super::host::{config, on_a_host, run, until};

#[test]
fn two_hundred_slots_come_and_go_without_a_trace() {
    on_a_host(async |host| {
        let before = host.traces();
        let slots = Slots::start(config(|config| (config.max_slots, config.pool) = (250, 4)), &[]).await.unwrap();

        let begin = Instant::now();
        let taken = try_join_all((0..200).map(|_| slots.take())).await.unwrap();
        println!("200 slots made in {:?}", begin.elapsed());
        let numbers: BTreeSet<_> = taken.iter().map(|slot| slot.number()).collect();
        assert_eq!(numbers.len(), 200);
        let now = host.traces();
        assert!(taken.iter().all(|slot| now[0].contains(slot.name())));

        let begin = Instant::now();
        join_all(taken.into_iter().map(|slot| slots.destroy(slot))).await;
        slots.close().await;
        println!("and taken away in {:?}", begin.elapsed());
        assert_eq!(host.traces(), before);
    });
}

#[test]
fn a_slot_that_waits_is_taken_at_once() {
    on_a_host(async |_| {
        let slots = Slots::start(config(|config| config.pool = 3), &[]).await.unwrap();
        until("three slots wait", || slots.waiting() == 3).await;
        let mut times = Vec::new();
        for _ in 0..3 {
            let begin = Instant::now();
            let slot = slots.take().await.unwrap();
            times.push(begin.elapsed());
            let begin = Instant::now();
            slot.set_guest([2, 0, 0, 0, 0, 7]).unwrap();
            drop(slot.open_tap().unwrap());
            println!("assigned in {:?}", begin.elapsed());
            slots.destroy(slot).await;
        }
        println!("taken in {times:?}");
        until("three others wait", || slots.waiting() == 3).await;
        slots.close().await;
    });
}

#[test]
fn a_number_is_not_given_out_again_while_there_are_others() {
    on_a_host(async |_| {
        let slots = Slots::start(config(|config| config.max_slots = 3), &[]).await.unwrap();
        let mut numbers = Vec::new();
        for _ in 0..7 {
            let slot = slots.take().await.unwrap();
            numbers.push(slot.number());
            slots.destroy(slot).await;
        }
        assert_eq!(numbers, [1, 2, 3, 1, 2, 3, 1]);
        slots.close().await;
    });
}

#[test]
fn no_more_slots_are_made_than_there_may_be() {
    on_a_host(async |host| {
        let slots = Slots::start(config(|config| (config.max_slots, config.pool) = (3, 3)), &[]).await.unwrap();
        let mut taken = try_join_all((0..3).map(|_| slots.take())).await.unwrap();
        assert!(matches!(slots.take().await, Err(SlotError::Full(3))));
        slots.destroy(taken.pop().unwrap()).await;
        let slot = slots.take().await.unwrap();
        assert_eq!(host.traces()[0].matches("sp-").count(), 3);
        join_all(taken.into_iter().chain([slot]).map(|slot| slots.destroy(slot))).await;
        slots.close().await;
        assert!(matches!(slots.take().await, Err(SlotError::Closed)));
    });
}

#[test]
fn a_tap_has_one_user_at_a_time() {
    on_a_host(async |_| {
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        let slot = slots.take().await.unwrap();
        let tap = slot.open_tap().unwrap();
        assert_eq!(slot.open_tap().unwrap_err().raw_os_error(), Some(Errno::EBUSY as i32));
        drop(tap);
        // Not at once: a process that another test starts has a copy until it runs its program.
        until("the tap is free", || slot.open_tap().is_ok()).await;
        slots.destroy(slot).await;
        slots.close().await;
    });
}

#[test]
fn a_take_that_is_given_up_leaves_no_slot_that_nobody_knows() {
    on_a_host(async |host| {
        let before = host.traces();
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        {
            let take = pin!(slots.take());
            assert!(take.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        until("a slot is there", || host.traces()[0].contains("sp-1")).await;
        // The next one to come gets it, or it goes with the others.
        let slot = slots.take().await.unwrap();
        slots.destroy(slot).await;
        slots.close().await;
        assert_eq!(host.traces(), before);
    });
}

#[test]
fn slots_in_use_are_adopted_and_all_others_of_an_earlier_process_go() {
    on_a_host(async |host| {
        let before = host.traces();
        let config = config(|config| config.max_slots = 5);
        let earlier = Slots::start(config.clone(), &[]).await.unwrap();
        let kept = earlier.take().await.unwrap();
        let lost = earlier.take().await.unwrap();
        assert_eq!((kept.number(), lost.number()), (1, 2));
        // The earlier process has its end, and a monitor too.
        drop((earlier, kept, lost));

        let slots = Slots::start(config.clone(), &[1, 4]).await.unwrap();
        let names = host.traces();
        assert!(names[0].contains("sp-1") && names[1].contains("spv1"));
        assert!(!names[0].contains("sp-2") && !names[1].contains("spv2"));

        let adopted = slots.adopt(1).await.unwrap();
        until("its tap is free", || adopted.open_tap().is_ok()).await;
        assert!(matches!(slots.adopt(1).await, Err(SlotError::NotLeft(1))), "once");
        assert!(matches!(slots.adopt(2).await, Err(SlotError::NotLeft(2))));
        // A new slot has none of the numbers in use, whether there is anything of theirs or not.
        let taken = try_join_all((0..3).map(|_| slots.take())).await.unwrap();
        assert_eq!(taken.iter().map(|slot| slot.number()).collect::<BTreeSet<_>>(), [2, 3, 5].into());
        // The host went down in between, say.
        assert!(matches!(slots.adopt(4).await, Err(SlotError::Slot { number: 4, .. })));

        // An agent ends and its sandboxes run on: their slots and the table stay.
        slots.close().await;
        let names = host.traces();
        assert!(names[0].contains("sp-1") && names[2].contains("table inet sp"));
        let last = Slots::start(config, &[]).await.unwrap();
        last.close().await;
        assert_eq!(host.traces(), before);
    });
}

#[test]
fn what_is_named_almost_like_a_slot_is_left_alone() {
    on_a_host(async |host| {
        run("ip", &["netns", "add", "sp-x"]);
        run("ip", &["netns", "add", "sp-007"]);
        run("ip", &["link", "add", "spvpn0", "type", "veth", "peer", "name", "spv1a"]);
        // Even with a slot's name: what is no pair's end is no slot's.
        run("ip", &["link", "add", "spv9", "type", "bridge"]);
        let before = host.traces();
        let slots = Slots::start(config(|_| {}), &[]).await.unwrap();
        slots.close().await;
        assert_eq!(host.traces(), before);
    });
}
