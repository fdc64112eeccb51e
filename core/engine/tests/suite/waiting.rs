//! The plain state of those who wait, verb by verb. `token_model.rs`, `listing_model.rs` and `loan_model.rs` have what
//! several threads make of it.

use anyring_engine::wait::listing::{Kick, Listing, TICK_NS};
use anyring_engine::wait::loan::Loan;
use anyring_engine::wait::token::{Driver, Sleep, Token, Wake};

fn woken(act: impl FnOnce(&mut dyn FnMut(Wake))) -> Vec<Wake> {
    let mut all = Vec::new();
    act(&mut |wake| all.push(wake));
    all
}

#[test]
fn the_end_of_work_wakes_each_observer_once_and_nobody_else() {
    let mut token = Token::default();
    token.drive(1);
    let places = [Sleep::Driver(1), Sleep::Observer, Sleep::Observer].map(|sleep| token.sleep(sleep));
    let observers = [Wake::Sleeper(places[1]), Wake::Sleeper(places[2])];
    assert_eq!(woken(|wake| token.work_ended(wake)), observers);
    assert_eq!(woken(|wake| token.work_ended(wake)), []);
    // Who is awake leaves its place to the next.
    token.awake(places[1]);
    assert_eq!(token.sleep(Sleep::Observer), places[1]);
    assert_eq!(woken(|wake| token.work_ended(wake)), [Wake::Sleeper(places[1])]);
}

#[test]
fn who_sleeps_is_counted_and_awaits() {
    let mut token = Token::default();
    assert!(!token.is_awaited() && token.is_free());
    assert_eq!(token.asleep(), 0);
    let place = token.sleep(Sleep::Observer);
    assert!(token.is_awaited());
    assert_eq!(token.asleep(), 1);
    token.awake(place);
    assert_eq!(token.asleep(), 0);
    token.drive(2);
    assert!(token.is_awaited() && !token.is_free());
    assert_eq!((token.asleep(), token.driver()), (1, Driver::Caller));
    // The driver is told once that there is enough.
    assert_eq!(woken(|wake| token.posted(1, wake)), []);
    assert_eq!(woken(|wake| token.posted(2, wake)), [Wake::Driver]);
    assert_eq!(woken(|wake| token.posted(3, wake)), []);
    token.give_up();
    assert_eq!((token.asleep(), token.driver()), (0, Driver::Nobody));
}

#[test]
fn the_role_goes_to_a_sleeper_that_may_have_it() {
    let mut token = Token::default();
    token.sleep(Sleep::Observer);
    assert_eq!(woken(|wake| assert!(!token.pass_on(wake))), []);
    let place = token.sleep(Sleep::Driver(7));
    assert_eq!(woken(|wake| assert!(token.pass_on(wake))), [Wake::Sleeper(place)]);
    assert_eq!(woken(|wake| assert!(token.pass_on(wake))), [], "it is woken already");
    assert_eq!(woken(|wake| token.wake_all(wake)), [Wake::Sleeper(0)]);
}

#[test]
fn a_reactor_that_sleeps_too_long_is_kicked() {
    let mut listing = Listing::new();
    assert_eq!(listing.add(7, 'a', 0), Kick(true));
    assert_eq!(
        listing.bring_look_forward(7, 60),
        Kick(true),
        "the reactor does not know yet that it wakes sooner"
    );
    assert_eq!(listing.falls_asleep(), 60);
    assert_eq!(
        (listing.bring_look_forward(7, 60), listing.bring_look_forward(7, 70)),
        (Kick(false), Kick(false))
    );
    assert_eq!(listing.bring_look_forward(7, 50), Kick(true));
    listing.wakes();
    assert_eq!(listing.bring_look_forward(7, 1), Kick(false), "it finds that before it sleeps");
    assert_eq!(listing.falls_asleep(), 1);
    listing.clear();
    assert!(listing.rings().is_empty());
    assert_eq!(listing.bring_look_forward(7, u64::MAX - 1), Kick(true), "nobody has said when it wakes");
}

/// However many rings there are, those are looked at that are due.
#[test]
fn a_reactor_looks_at_what_is_due() {
    let mut listing = Listing::new();
    for serial in 0..3000 {
        let _ = listing.add(serial, serial, 0);
    }
    assert_eq!(listing.take_due(TICK_NS - 1), []);
    assert_eq!(listing.take_due(TICK_NS).len(), 3000);
    assert_eq!(listing.take_due(u64::MAX), [], "each is due once");
    assert_eq!(listing.falls_asleep(), u64::MAX);
    for (serial, due_ns) in [(8, 40), (9, 60), (7, 50), (5, 70), (5, 1)] {
        let _ = listing.bring_look_forward(serial, due_ns);
    }
    listing.remove(8);
    assert_eq!(listing.take_due(50), [5, 7]);
    assert_eq!(listing.falls_asleep(), 60);
    listing.set_due(9, u64::MAX);
    assert_eq!((listing.falls_asleep(), listing.get(8), listing.get(9)), (u64::MAX, None, Some(9)));
}

#[test]
fn work_is_lent_where_it_is_all_that_follows() {
    let queued = |works: &[(u32, (u32, usize), bool)]| {
        let mut loan = Loan::default();
        loan.open(true);
        for &(sq_head, posted, fits) in works {
            loan.queue(sq_head, posted, fits);
        }
        let &(sq_head, posted, _) = works.last().unwrap();
        let open = loan.is_open();
        (open, loan.close(sq_head, posted))
    };
    let none = (0, 0);
    assert_eq!(queued(&[(1, none, true)]), (true, true));
    assert_eq!(queued(&[(1, none, true), (2, none, true)]), (true, true));
    assert_eq!(queued(&[(u32::MAX, none, true), (0, none, true)]), (true, true));
    assert_eq!(queued(&[(1, none, true), (3, none, true)]), (false, false), "something else is between");
    assert_eq!(queued(&[(1, none, true), (2, (1, 0), true)]), (false, false), "something has completed");
    assert_eq!(queued(&[(1, none, true), (2, (0, 1), true)]), (false, false), "and is kept");
    assert_eq!(queued(&[(1, none, false), (2, none, true)]), (false, false), "it does not fit");
    assert_eq!(queued(&[(1, none, true), (2, none, false)]), (false, false));
    assert!(!Loan::default().is_open());
}
