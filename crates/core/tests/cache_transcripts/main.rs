//! Transcripts of the cache: stories in `stories/*.txt`, told to a cache by a hand-made parent.
//!
//! A story is blocks of commands, parted by empty lines; `#` begins a comment. The snapshot shows
//! every block, `----`, and what the cache answered. Regenerate with `INSTA_UPDATE=always`, and
//! review the difference.

mod parent;
mod stage;

use stage::Stage;

fn told(story: &str) -> String {
    let mut stage = Stage::new();
    let mut text = String::new();
    for block in story.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let block = block.trim_matches('\n');
        text.push_str(block);
        text.push('\n');
        if block.lines().all(|line| line.starts_with('#')) {
            text.push('\n');
            continue;
        }
        text.push_str("----\n");
        for line in block.lines().filter(|line| !line.starts_with('#')) {
            for answer in stage.run(line) {
                text.push_str(&answer);
                text.push('\n');
            }
        }
        text.push('\n');
        stage.check();
    }
    text
}

macro_rules! stories {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            let story = include_str!(concat!("stories/", stringify!($name), ".txt"));
            insta::assert_snapshot!(stringify!($name), told(story));
        }
    )*};
}

stories! {
    node_without_a_volume,
    several_parents,
    several_parents_calls,
    several_parents_late,
    several_parents_over,
    several_parents_refused,
    bug01_age_of_a_snapshot,
    bug02_reset_of_the_same_line,
    bug04_refused_write,
    bug05_notice_lost_with_a_fetch,
    bug08_fork_before_first_use,
    bug10_fell_off_the_ring,
    bug11_reset_in_the_middle,
    ahead_after_a_refusal,
    ahead_beside_a_list,
    ahead_beside_a_resume,
    ahead_beside_an_older_base,
    ahead_changed_again,
    ahead_not_known,
    ahead_of_a_line_that_is_lost,
    ahead_of_the_stream,
    boot_that_ends,
    boot_that_expired,
    commit_in_doubt,
    companions,
    boot_that_was_not_registered,
    bug12_damaged_page_outside_the_fetch,
    bug14_commit_longer_than_a_message,
    bug196_another_boot_of_the_name,
    bug200_lost_where_nobody_was_asked,
    bug205_refused_after_it_was_sent,
    bug20_put_off_after_its_outcome,
    bug27_outcome_ahead_of_its_stream,
    full_store,
    two_domains,
    damaged_page,
    deleted_volume,
    deleted_volume_at_a_resume,
    bug22_two_beats_of_one_instant,
    bug24_a_beat_forgotten,
    bug25_a_failure_overtakes_a_page,
    bug28_a_failure_of_another_page,
    bug29_a_list_overtaken,
    bug30_a_notice_overtaken,
    bug39_older_than_the_clock,
    bug40_beats_slower_than_the_lease,
    bug41_a_page_of_another_domain,
    bug43_a_notice_of_ones_own_page,
    bug57_a_right_given_while_away,
    bug58_a_right_overtaken,
    bug76_one_request_at_a_time,
    bug77_a_clock_set_back,
    bug81_counted_for_pages_that_are_not_held,
    bug82_a_list_begun_anew,
    bug83_confirmed_to_nobody,
    bug96_a_stream_that_found_no_room,
    bug98_notices_of_pages_that_are_not_there,
    bug115_refused_before_the_stream,
    bug116_a_number_read_in_a_record,
    bug117_an_absence_that_no_list_names,
    bug118_named_in_vain,
    bug208_made_while_it_might_not_be_read,
    bug208_while_a_reader_runs,
    bug213_one_page_behind_many,
    bug214_ends_where_it_asks,
    bug219_a_volume_that_is_made_again,
    bug221_a_volume_that_has_become_another,
    bug229_outcomes_left_open,
    bug230_turned_away,
    bug124_commits_in_doubt_at_once,
    bug141_a_list_after_a_reset,
    bug147_a_resume_that_waits,
    bug149_given_up_when_it_is_here,
    bug167_a_right_of_before_a_deletion,
    bug184_who_decided_was_restored,
    bug184_who_decides_waits_in_vain,
    bug139_a_wait_on_a_line_that_is_lost,
    bug134_a_question_that_nobody_answered,
    bug225_a_wait_on_a_line_of_before,
    bug227_a_deletion_of_which_nobody_asks,
    bug228_an_answer_before_the_stream_gives_back,
    bug226_named_as_a_whole_after_what_was_withheld,
    failover_neighbours,
    failover_under_way,
    group_asks,
    group_asks_again,
    group_early_and_late,
    group_given_up,
    group_helps,
    group_holes,
    group_too_many_holes,
    group_helps_not,
    group_updates,
    group_updates_not,
    group_links,
    group_reader_helps,
    group_sends_on,
    group_strangers,
    race_evicted_and_overtaken,
    race_joins_an_overtaken_fetch,
    race_owed_changes_first,
    refreshes,
    right_lost_and_given_back,
    rule01_doom,
    rule02_pinned_notices,
    rule03_reader_threads,
    rule04_interval,
    rule05_buffer,
    rule06_request_ids,
    rule07_no_join_across_notice,
    rule08_lease_after_copy,
    rule09_absence,
    rule15_exactly_once,
    rule16_history,
    rule17_resume,
    rule18_generations,
}
